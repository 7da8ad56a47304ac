"""An output directory is whole or absent, and its manifest finds what was edited, truncated or mixed up since."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from common import artifacts
from common.artifacts import (
    MANIFEST_NAME,
    DigestingWriter,
    Manifest,
    check_files,
    combined_digest,
    digest_bytes,
    digest_file,
    digest_files,
    read_manifest,
    require_free_space,
    require_manifest,
    require_same_tokenizer,
    staged_directory,
    write_manifest,
)
from common.process_identity import ProcessIdentity, start_of
from tests.processes import ROOT
from tests.refusals import refused


def test_versions_are_those_of_the_installed_packages() -> None:
    installed = artifacts._RECORDED_PACKAGES
    assert "torch" in installed
    for package in {*installed, "numpy", "pytest"}:
        try:
            expected = metadata.version(package)
        except metadata.PackageNotFoundError:
            with pytest.raises(metadata.PackageNotFoundError):
                artifacts._version(package)
        else:
            assert artifacts._version(package) == expected


def test_output_appears_when_complete(tmp_path: Path) -> None:
    output = tmp_path / "deep/out"
    with staged_directory(output) as staging:
        (staging / "a.txt").write_text("a")
        assert not output.exists() and staging.parent == output.parent
    assert (output / "a.txt").read_text() == "a" and [path.name for path in output.parent.iterdir()] == ["out"]


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staged_directory(tmp_path / "out") as staging:
        (staging / "a").touch()
    assert (tmp_path / "out/a").is_file()


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), SystemExit(143)])
def test_nothing_stays_after_an_error(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), staged_directory(tmp_path / "out") as staging:
        (staging / "half").write_text("x")
        raise error
    assert not list(tmp_path.iterdir())


def test_existing_outputs_are_refused_and_kept(tmp_path: Path) -> None:
    full, file, link = tmp_path / "full", tmp_path / "file", tmp_path / "link"
    full.mkdir()
    (full / "a").write_text("keep")
    file.write_text("keep")
    link.symlink_to(full)
    for path, sentence in {
        full: f"the output directory {full} exists and is not empty; remove it or choose another --output",
        file: f"the output {file} exists and is not a directory; choose another --output",
        link: f"the output {link} exists and is not a directory; choose another --output",
    }.items():
        with refused(sentence), staged_directory(path):
            raise AssertionError("never gets here")
    assert (full / "a").read_text() == file.read_text() == "keep" and link.is_symlink()


@pytest.mark.parametrize(
    ("umask", "directory_mode", "file_mode"), [(0o077, 0o750, 0o640), (0o027, 0o750, 0o640), (0o022, 0o755, 0o644), (0o002, 0o775, 0o644)]
)
def test_group_can_read_whatever_the_umask_and_others_by_it(tmp_path: Path, umask: int, directory_mode: int, file_mode: int) -> None:
    before = os.umask(umask)
    try:
        with staged_directory(tmp_path / "out") as staging:
            (staging / "inner").mkdir()
            (staging / "inner/a").touch(mode=0o600)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("out", "out/inner", "out/inner/a")]
    assert modes == [directory_mode, directory_mode, file_mode]


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    output = tmp_path / "out"
    sentence = (
        f"the disk is full while writing {output}: [Errno {errno.ENOSPC}] No space left on device; nothing was kept;"
        " free some space or choose another --output"
    )
    with refused(sentence), staged_directory(output), open("/dev/full", "wb", buffering=0) as stream:
        stream.write(b"x")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from common.artifacts import staged_directory
with staged_directory(Path(sys.argv[1])) as staging:
    (staging / "half").write_text("x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_of_the_same_output(tmp_path: Path) -> None:
    for name in ("out", "other"):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], cwd=ROOT, timeout=30)
        assert done.returncode == -signal.SIGKILL
    (other,) = tmp_path.glob(".other.partial-*")
    assert len(list(tmp_path.iterdir())) == 2
    with staged_directory(tmp_path / "out"):
        assert len(list(tmp_path.glob(".out.partial-*"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"out", other.name}


def test_only_what_is_certainly_left_over_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ProcessIdentity.own()
    ended = subprocess.Popen(["true"])
    ended.wait()
    processes = {
        "ended": replace(own, process_id=ended.pid),
        "its id used again": replace(own, started=own.started - 1),
        "before the machine was started again": replace(own, boot="00000000"),
        "at work": own,
        "elsewhere": replace(own, host="node7", machine="00000000"),
        "elsewhere, with ids of another boot": replace(own, host="node8", machine="00000000", boot="00000000", process_id=ended.pid),
    }
    places = {what: tmp_path / f".out.partial-{process.label}_0123" for what, process in processes.items()}
    places["of another form"] = tmp_path / ".out.partial-0123abcd"
    for place in places.values():
        (place / "inner").mkdir(parents=True)
    with staged_directory(tmp_path / "out"):
        pass
    stay = ("at work", "elsewhere", "elsewhere, with ids of another boot", "of another form")
    assert {path for path in tmp_path.iterdir() if path.name != "out"} == {places[what] for what in stay}
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(
        f"note: {places[what]} is of {whose}; remove it if that process has ended"
        for what, whose in zip(stay[1:], (f"process {own.process_id} on node7", f"process {ended.pid} on node8", "an unknown process"))
    )


def test_a_process_is_known_by_its_label() -> None:
    own = ProcessIdentity.own()
    assert ProcessIdentity.from_label(own.label) == own and not own.is_gone and own.is_here and len(own.label) < 70
    assert ProcessIdentity.from_label("0123abcd") is None and ProcessIdentity.from_label(f"{own.label}_x") is None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = start_of(child.pid)
    assert started == int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    seen = replace(own, process_id=child.pid, started=started)
    assert not seen.is_gone
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert seen.is_gone and start_of(child.pid) is None, "killed, though its parent has not noticed"
    child.wait()
    assert seen.is_gone and start_of(child.pid) is None


def test_places_where_no_output_can_be_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    longest = "n" * (255 - len(os.fsencode(f"..partial-{ProcessIdentity.own().label}_0123")))
    for path, sentence in {
        tmp_path / "file/a/out": f"the output {tmp_path}/file/a/out would be inside {tmp_path}/file, which is not a directory;"
        " choose another --output",
        tmp_path / "nowhere/out": f"the output {tmp_path}/nowhere/out would be inside {tmp_path}/nowhere, which is not a directory;"
        " choose another --output",
        Path("/proc/out"): ": No such file or directory; choose another --output",
        Path("/proc/deep/out"): "/proc/deep/out cannot be created: /proc/deep: No such file or directory; choose another --output",
        tmp_path / f"{longest}čč": "4 bytes too long, as a temporary directory gets a longer name; choose a shorter --output",
    }.items():
        with pytest.raises(ValueError) as error, staged_directory(path):
            raise AssertionError("never gets here")
        assert str(error.value).startswith("the ") and str(error.value).endswith(sentence)
    with staged_directory(tmp_path / longest):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"file", "nowhere", longest}


READ_ONLY = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /sys/kernel && exec "$@"', "sh"]


@pytest.mark.skipif(subprocess.run([*READ_ONLY, "true"], capture_output=True).returncode != 0, reason="no right to mount")
def test_a_place_that_nobody_can_write_to_is_refused_at_once() -> None:
    """On a file system that is read-only, in a namespace of its own: permissions alone would not stop root."""
    code = "from common.artifacts import free_output; from pathlib import Path; free_output(Path('/sys/kernel/out'))"
    done = subprocess.run([*READ_ONLY, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stderr.splitlines()[-1] == (
        "ValueError: the output /sys/kernel/out cannot be created: /sys/kernel is not writable for this user or is on a read-only file system;"
        " choose another --output"
    )


def test_too_little_space_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error, staged_directory(tmp_path / "out", required_bytes=2**70):
        raise AssertionError("never gets here")
    found, _, rest = str(error.value).partition(" GiB free, ")
    assert found.startswith(f"{tmp_path} has ")
    assert rest == f"but the output needs about {2**40:.2f} GiB; free some space or choose another --output"
    assert not list(tmp_path.iterdir())
    require_free_space(tmp_path, 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "made"
    (directory / "inner").mkdir(parents=True)
    (directory / "a.bin").write_bytes(b"abc")
    (directory / "inner/b.bin").write_bytes(b"")
    return directory


def test_manifest_comes_back_as_written(directory: Path) -> None:
    written = write_manifest(
        directory,
        stage="conversion.transfer",
        facts={"vocab_size": 7, "tie": True},
        arguments={"input": Path("x"), "files": [Path("a"), Path("b")], "seed": None},
        inputs={"source": "xxh3:1"},
    )
    assert read_manifest(directory) == written
    assert written.arguments == {"input": "x", "files": ["a", "b"], "seed": None}
    assert set(written.files) == {"a.bin", "inner/b.bin"}, "not the manifest itself"
    assert (written.files["a.bin"].size, written.files["a.bin"].digest) == (3, digest_bytes(b"abc"))
    assert written.versions["python"] and written.commit
    check_files(directory, written)
    assert read_manifest(directory / "inner") is None


def test_manifest_without_hashing_records_sizes(directory: Path) -> None:
    manifest = write_manifest(directory, stage="s", facts={}, hash_files=False, known_digests={"inner/b.bin": digest_bytes(b"")})
    assert {name: record.digest for name, record in manifest.files.items()} == {"a.bin": None, "inner/b.bin": digest_bytes(b"")}
    (directory / "a.bin").write_bytes(b"xyz")
    check_files(directory, manifest)  # an edit of the same size is not seen
    (directory / "a.bin").write_bytes(b"ab")
    with pytest.raises(ValueError, match="truncated or edited"):
        check_files(directory, manifest)


def test_damage_is_named(directory: Path) -> None:
    manifest = write_manifest(directory, stage="conversion.transfer", facts={})
    path = directory / "a.bin"
    for content, sentence in {
        b"abd": f"{path} was edited after conversion.transfer wrote it: its digest is not that of its manifest; make {directory} again",
        b"ab": f"{path} has 2 bytes, but its manifest says 3: truncated or edited; make {directory} again",
    }.items():
        path.write_bytes(content)
        with refused(sentence):
            check_files(directory, manifest)
    path.unlink()
    with refused(f"{path} is missing; its manifest lists it with 3 bytes; make {directory} again"):
        check_files(directory, manifest)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "5",
        "[" * 9999,
        '{"format": 1}',
        '{"format": 99, "stage": "s", "files": {}}',
        '{"format": 1, "files": {}, "x": 1}',
        '{"format": 1, "files": {}, "stage": 5}',
        '{"format": 1, "files": {}, "stage": "s", "facts": 5}',
        '{"format": 1, "files": {}, "stage": "s", "inputs": [["a", "b"]]}',
        '{"format": 1, "files": {}, "stage": "s", "inputs": {"a": 5}}',
        '{"format": 1, "files": {}, "stage": "s", "versions": "3"}',
        '{"format": 1, "files": {}, "stage": "s", "commit": {}}',
        '{"format": 1, "files": {}, "stage": "s", "arguments": null}',
        '{"format": 1, "stage": "s", "files": ["a"]}',
        '{"format": 1, "stage": "s", "files": {"a": {"size": 1.5, "digest": null}}}',
        '{"format": 1, "stage": "s", "files": {"a": {"size": true, "digest": null}}}',
        '{"format": 1, "stage": "s", "files": {"a": {"size": 1, "digest": 5}}}',
        '{"format": 1, "stage": "s", "files": {"../a": {"size": 1, "digest": null}}}',
        '{"format": 1, "stage": "s", "files": {"/etc/hosts": {"size": 1, "digest": null}}}',
    ],
)
def test_a_broken_manifest_is_a_sentence(directory: Path, content: str) -> None:
    (directory / MANIFEST_NAME).write_text(content)
    (directory / "a").write_text("x")
    with pytest.raises(ValueError) as error:
        read_manifest(directory)
    assert str(error.value).startswith(f"{directory / MANIFEST_NAME} is not a manifest of format 1 (")
    assert str(error.value).endswith("); make the folder again")


def test_a_folder_of_another_stage_is_refused(directory: Path) -> None:
    made_by = "python -m conversion.transfer"
    with refused(f"{directory / 'none'} is not a directory; make it with `{made_by}`"):
        require_manifest(directory / "none", stages=["conversion.transfer"], made_by=made_by)
    with refused(f"{directory} has no scion.json; make it with `{made_by}`"):
        require_manifest(directory, stages=["conversion.transfer"], made_by=made_by)
    written = write_manifest(directory, stage="data_prep.to_megatron", facts={})
    with refused(f"{directory} was written by data_prep.to_megatron; expected the output of `{made_by}`"):
        require_manifest(directory, stages=["conversion.transfer"], made_by=made_by)
    assert require_manifest(directory, stages=["data_prep.to_megatron"], made_by=made_by) == written


def test_digest_is_of_content_not_of_place_or_arguments(tmp_path: Path) -> None:
    manifests: list[Manifest] = []
    for name, content in (("one", b"abc"), ("two", b"abc"), ("three", b"abd")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(content)
        manifests.append(write_manifest(tmp_path / name, stage=name, facts={}, arguments={"name": name}))
    assert manifests[0].digest == manifests[1].digest != manifests[2].digest


def test_digests(tmp_path: Path) -> None:
    data = os.urandom(9 << 20)  # more than one piece
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(b"")
    assert digest_file(tmp_path / "a") == digest_bytes(data) == f"xxh3:{xxhash.xxh3_128(data).hexdigest()}"
    assert digest_files(tmp_path, ["a", "b"]) == digest_files(tmp_path, ["b", "a"]) != digest_files(tmp_path, ["a"])
    assert combined_digest({"a": "1", "b": "2"}) != combined_digest({"a": "2", "b": "1"}), "a swap of two files is seen"


@given(st.lists(st.binary(max_size=50)))
def test_digesting_writer_knows_what_it_wrote(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("writer") / "a"
    with DigestingWriter(path) as writer:
        assert [writer.write(piece) for piece in pieces] == list(map(len, pieces))
        writer.write(np.arange(3, dtype=np.int32).data)
    assert path.read_bytes() == b"".join(pieces) + np.arange(3, dtype=np.int32).tobytes()
    assert writer.digest == digest_file(path)


def test_two_tokenizers_are_refused() -> None:
    require_same_tokenizer("xxh3:1", "xxh3:1", found_in="a", expected_by="b")
    require_same_tokenizer(None, "xxh3:1", found_in="a", expected_by="b")
    with refused("the data a/ uses tokenizer xxh3:1, but the checkpoint b/ uses tokenizer xxh3:2; make both with the same tokenizer"):
        require_same_tokenizer("xxh3:1", "xxh3:2", found_in="the data a/", expected_by="the checkpoint b/")


def test_manifest_is_plain_json(directory: Path) -> None:
    write_manifest(directory, stage="s", facts={"č": "š"})
    text = (directory / MANIFEST_NAME).read_text(encoding="utf-8")
    assert json.loads(text)["facts"] == {"č": "š"} and '"č": "š"' in text
