"""An output directory is whole or absent, and its manifest finds what was edited, truncated or mixed up since."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from data_prep.artifacts import (
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
        with pytest.raises(ValueError) as error, staged_directory(path):
            raise AssertionError("never gets here")
        assert str(error.value) == sentence
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
    with pytest.raises(ValueError) as error, staged_directory(output), open("/dev/full", "wb", buffering=0) as stream:
        stream.write(b"x")
    assert str(error.value) == (
        f"the disk is full while writing {output}: [Errno {errno.ENOSPC}] No space left on device; nothing was kept;"
        " free some space or choose another --output"
    )
    assert not list(tmp_path.iterdir())


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
        with pytest.raises(ValueError) as error:
            check_files(directory, manifest)
        assert str(error.value) == sentence
    path.unlink()
    with pytest.raises(ValueError) as error:
        check_files(directory, manifest)
    assert str(error.value) == f"{path} is missing; its manifest lists it with 3 bytes; make {directory} again"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": 1}', '{"format": 99, "stage": "s", "files": {}}', '{"format": 1, "files": {}, "x": 1}']
)
def test_a_broken_manifest_is_a_sentence(directory: Path, content: str) -> None:
    (directory / MANIFEST_NAME).write_text(content)
    with pytest.raises(ValueError) as error:
        read_manifest(directory)
    assert str(error.value).startswith(f"{directory / MANIFEST_NAME} is no manifest of format 1 (")
    assert str(error.value).endswith("); make the folder again")


def test_a_folder_of_another_stage_is_refused(directory: Path) -> None:
    made_by = "python -m conversion.transfer"
    with pytest.raises(ValueError) as error:
        require_manifest(directory / "none", stages=["conversion.transfer"], made_by=made_by)
    assert str(error.value) == f"{directory / 'none'} is no directory; make it with `{made_by}`"
    with pytest.raises(ValueError) as error:
        require_manifest(directory, stages=["conversion.transfer"], made_by=made_by)
    assert str(error.value) == f"{directory} has no scion.json; make it with `{made_by}`"
    written = write_manifest(directory, stage="data_prep.to_megatron", facts={})
    with pytest.raises(ValueError) as error:
        require_manifest(directory, stages=["conversion.transfer"], made_by=made_by)
    assert str(error.value) == f"{directory} was written by data_prep.to_megatron; expected the output of `{made_by}`"
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
    with pytest.raises(ValueError) as error:
        require_same_tokenizer("xxh3:1", "xxh3:2", found_in="the data a/", expected_by="the checkpoint b/")
    assert str(error.value) == (
        "the data a/ uses tokenizer xxh3:1, but the checkpoint b/ uses tokenizer xxh3:2; make both with the same tokenizer"
    )


def test_manifest_is_plain_json(directory: Path) -> None:
    write_manifest(directory, stage="s", facts={"č": "š"})
    text = (directory / MANIFEST_NAME).read_text(encoding="utf-8")
    assert json.loads(text)["facts"] == {"č": "š"} and '"č": "š"' in text
