"""Models and data sets of the Hugging Face hub in the cache that jobs read without internet."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from slurm.fetching.downloads import sha256_of

KINDS = ("model", "dataset")
_NAME = re.compile(r"(?:(?P<kind>\w+):)?(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Repository:
    """A repository of the hub at a revision: a branch, a tag or a commit."""

    kind: str
    name: str
    revision: str = "main"


def parse_repository(text: str) -> Repository:
    """A repository from `dataset:owner/name@revision`; a model at its main branch where nothing else is said.

    Raises:
        ValueError: for any other form.
    """
    found = _NAME.fullmatch(text)
    kind = found["kind"] or "model" if found else ""
    if found is None or kind not in KINDS:
        raise ValueError(f"{text!r} is not a repository of the hub; expected owner/name, dataset:owner/name or owner/name@revision")
    return Repository(kind, found["repository"], found["revision"] or "main")


def hub_dir(cache_dir: Path, repository: Repository) -> Path:
    """Where huggingface_hub keeps a repository."""
    return cache_dir / "huggingface" / "hub" / f"{repository.kind}s--{repository.name.replace('/', '--')}"


def fetch_repository(repository: Repository, cache_dir: Path) -> Path:
    """Bring a repository; what is present is not downloaded again, and an interrupted file resumes.

    Returns:
        The directory of its files, which commands take as a path.

    Raises:
        ValueError: if the hub refuses or a file is not what its name in the cache says.
    """
    os.environ["HF_HOME"] = str(cache_dir / "huggingface")  # read when huggingface_hub is imported
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(repository.name, repo_type=repository.kind, revision=repository.revision)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{repository.name} could not be downloaded: {reason}; the same command resumes") from error
    if problems := check_blobs(hub_dir(cache_dir, repository)):
        raise ValueError("; ".join(problems))
    return Path(snapshot)


def check_blobs(repository_dir: Path) -> list[str]:
    """What of a repository is damaged: the hub names large files by their SHA-256 and small ones by git's digest of a blob."""
    problems = []
    for blob in sorted((repository_dir / "blobs").glob("*")):
        expected = blob.name
        found = {64: sha256_of, 40: _git_digest}.get(len(expected))
        if found is not None and found(blob) != expected:
            problems.append(f"{blob} is damaged: its content does not match its digest; remove it and run the command again")
    return problems


def _git_digest(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
