"""The login node's cache: interrupted downloads go on, wrong content is never in place, and what is here is not fetched again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slurm.fetching.downloads import download, require_sha256
from slurm.fetching.hub import Repository, check_blobs, hub_dir, parse_repository
from tests.processes import ROOT
from tests.refusals import refused

CONTENT = bytes(range(256)) * 20_000  # 5 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "c" * 40
HUB_FILES = {"config.json": b"{}\n", "model.safetensors": b"weights" * 1000}


class Server(ThreadingHTTPServer):
    """Serves CONTENT and a hub of one repository; breaks off after `break_after` bytes where that is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.break_after: int | None = None
        self.requests: list[tuple[str, str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        headers, body = {}, CONTENT
        if self.path.startswith("/api/models/tiny/model"):
            body = json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in HUB_FILES]}).encode()
        elif self.path.startswith("/tiny/model/resolve/"):
            name = self.path.rpartition("/")[2]
            body = HUB_FILES[name]
            git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            large = hashlib.sha256(body).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{large if name.endswith("safetensors") else git}"'}
        elif self.path != "/data.bin":
            self.send_error(404)
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        for name, value in {"Content-Length": str(len(body) - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body[start:][: self.server.break_after])


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_interrupted_download_goes_on(server: Server, tmp_path: Path) -> None:
    server.break_after = 1_000_000
    with pytest.raises(ValueError, match="1,000,000 bytes are kept, the same command resumes from there"):
        download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=SHA256)
    assert not (tmp_path / "data.bin").exists()
    server.break_after = None
    assert download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=SHA256)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [range_ for _, _, range_ in server.requests] == [None, "bytes=1000000-"]
    assert not download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=SHA256)
    assert len(server.requests) == 2


def test_a_download_that_was_whole_but_not_renamed_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".data.bin.partial").write_bytes(CONTENT)
    assert download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=SHA256)


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    wrong = "0" * 64
    with refused(
        f"{server.address}/data.bin has the SHA-256 {SHA256}, expected {wrong}; it was deleted: check the address and the checksum"
    ):
        download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_edited_is_not_passed_off(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"edited")
    with pytest.raises(ValueError, match="it is damaged or another version; remove it and run the command again"):
        download(f"{server.address}/data.bin", tmp_path / "data.bin", sha256=SHA256)


def test_a_missing_address_says_so(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/none could not be downloaded: HTTP Error 404: Not Found; 0 bytes are kept"):
        download(f"{server.address}/none", tmp_path / "none", sha256=SHA256)


def test_checksums_are_checksums() -> None:
    assert require_sha256(f"sha256:{SHA256.upper()}") == SHA256
    with pytest.raises(ValueError, match="'abc' is not a SHA-256 checksum; expected 64 hexadecimal digits"):
        require_sha256("abc")


def test_names_of_repositories() -> None:
    assert parse_repository("facebook/opt-1.3b") == Repository("model", "facebook/opt-1.3b")
    assert parse_repository("dataset:cjvt/x@v1") == Repository("dataset", "cjvt/x", "v1")
    for wrong in ("opt-1.3b", "space:a/b", "a/b/c"):
        with pytest.raises(ValueError, match="is not a repository of the hub"):
            parse_repository(wrong)


def _prefetch(cache: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slurm.prefetch", "--cluster", "vega", "--set", f"scratch={cache}", *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_fetches_checks_and_finds_damage(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "scion_cache"
    fetched = _prefetch(tmp_path, "--file", f"{server.address}/data.bin", SHA256)
    assert (fetched.returncode, fetched.stdout) == (0, f"{cache}/files/data.bin: downloaded, checksum correct\n"), fetched.stderr
    again = _prefetch(tmp_path, "--check")
    assert (again.returncode, again.stdout) == (0, f"{cache}: 1 files and 0 repositories, 0 problems\n")
    (cache / "files" / "data.bin").write_bytes(CONTENT[:-1] + b"x")
    damaged = _prefetch(tmp_path, "--check")
    assert damaged.returncode == 1 and damaged.stdout.startswith(f"problem: {cache}/files/data.bin has the SHA-256 ")


def test_a_repository_of_the_hub_is_fetched_once_and_checked(server: Server, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": server.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0"}
    fetched = _prefetch(tmp_path, "--hub", "tiny/model", environment=environment)
    assert fetched.returncode == 0, fetched.stderr
    snapshot = Path(fetched.stdout.strip().partition(": ")[2])
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == HUB_FILES
    directory = hub_dir(tmp_path / "scion_cache", Repository("model", "tiny/model"))
    assert snapshot.is_relative_to(directory) and check_blobs(directory) == []
    blob = (snapshot / "config.json").resolve()
    blob.write_bytes(b"[]\n")
    assert check_blobs(directory) == [f"{blob} is damaged: its content does not match its digest; remove it and run the command again"]
    assert _prefetch(tmp_path, "--check").returncode == 1


def test_an_image_is_made_once_and_its_checksum_kept(tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "apptainer"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/bash\n[[ "$1" = pull && "$3" = docker://* ]] && echo "image of $3" >"$2"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
    image = tmp_path / "scion_cache" / "nemo-25.11.sif"
    made = _prefetch(tmp_path, "--image", "docker://x/nemo:25.11", environment=environment)
    assert made.returncode == 0 and image.read_text() == "image of docker://x/nemo:25.11\n", made.stderr
    stand_in.write_text("#!/bin/bash\nexit 1\n")
    again = _prefetch(tmp_path, "--image", "docker://x/nemo:25.11", environment=environment)
    assert (again.returncode, again.stdout) == (0, f"{image}: already present, checksum correct\n")
    other = _prefetch(tmp_path, "--image", "docker://x/nemo:24.01", environment=environment)
    assert other.stderr == f"error: {image} was made from docker://x/nemo:25.11; remove it to make it from docker://x/nemo:24.01\n"
    image.unlink()
    failed = _prefetch(tmp_path, "--image", "docker://x/nemo:25.11", environment=environment)
    assert failed.returncode == 2 and "apptainer could not make" in failed.stderr and not image.exists()


def test_an_environment_is_packed_whole_or_not_at_all(tmp_path: Path) -> None:
    venv, packed = tmp_path / "venv", tmp_path / "scion_cache" / "environment.tar"
    where = ("--set", f"runtime={{kind: venv, venv: {venv}}}", "--environment")
    none = _prefetch(tmp_path, *where)
    assert none.stderr == f"error: {venv} is not a virtual environment (it has no pyvenv.cfg); set runtime.venv=DIRECTORY\n"
    (venv / "lib").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "lib" / "a.pyc").write_bytes(b"compiled")
    made = _prefetch(tmp_path, *where)
    assert (made.returncode, made.stdout) == (0, f"{packed}: 0.0 GiB, all of {venv}\n"), made.stderr
    with tarfile.open(packed) as file:
        assert {name for name in file.getnames() if not name.endswith((".", "lib"))} == {"./pyvenv.cfg", "./lib/a.pyc"}
    assert _prefetch(tmp_path, "--check").stdout == f"{tmp_path}/scion_cache: 1 files and 0 repositories, 0 problems\n"
    image = _prefetch(tmp_path, "--environment")
    assert image.stderr == "error: the runtime of vega is apptainer without runtime.venv: there is no environment to pack\n"


def test_wheels_come_with_checksums(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "tiny_wheel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_wheel.py", "")
        wheel.writestr("tiny_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        wheel.writestr("tiny_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_wheel-1.0.dist-info/RECORD", "")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("tiny-wheel==1.0\n")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    done = _prefetch(tmp_path, "--wheels", str(requirements), environment=environment)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "scion_cache" / "prefetched.json").read_text())
    assert list(record) == ["wheels/tiny_wheel-1.0-py3-none-any.whl"]
    requirements.write_text("tiny-wheel==2.0\n")
    failed = _prefetch(tmp_path, "--wheels", str(requirements), environment=environment)
    assert failed.returncode == 2 and f"error: pip could not download all wheels of {requirements}" in failed.stderr


def test_nothing_to_fetch_is_a_mistake(tmp_path: Path) -> None:
    done = _prefetch(tmp_path)
    assert (
        done.stderr
        == "error: nothing to download; give --image, --file, --hub, --evaluation, --wheels or --environment, or --check to verify the cache\n"
    )
