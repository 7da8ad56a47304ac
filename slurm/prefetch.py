"""Download what jobs need into a cluster's cache, on its login node: compute nodes have no internet access.

Files, container images, models and data sets of the Hugging Face hub, Python wheels, the published evaluation sets that
`eval.prepare` reads, and the virtual environment as one file, which every node unpacks into `runtime.node_dir`.  Each has a checksum, given or that of
its first download; an interrupted command resumes where it stopped.  --check verifies all checksums.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlparse

from common import command
from common.options import add_option
from common.progress import Progress
from data_prep.reading.evaluation_sets import HUB, EvaluationSet, read_sets
from slurm.fetching.downloads import add_to_record, check_record, download, read_record, require_content, require_sha256
from slurm.fetching.environment import pack_environment
from slurm.fetching.hub import check_blobs, fetch_repository, parse_repository
from slurm.jobs.arguments import add_cluster_arguments, cluster_of
from slurm.jobs.job import ROOT
from slurm.sites.cluster import Cluster

_PULL = {
    "apptainer": ("apptainer", "pull", "{target}", "{source}"),
    "singularity": ("singularity", "pull", "{target}", "{source}"),
    "pyxis": ("enroot", "import", "--output", "{target}", "{source}"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch what is missing, or check what is here."""
    parser = command.parser(
        __doc__,
        example="python -m slurm.prefetch --cluster vega --image docker://nvcr.io/nvidia/nemo:25.11 --hub facebook/opt-1.3b --wheels requirements.txt",
    )
    add_cluster_arguments(parser)
    add_option(parser, "--image SOURCE", "source of the cluster's runtime.image, for example docker://nvcr.io/nvidia/nemo:25.11")
    add_option(
        parser,
        "--file",
        "file to download into files/, with its checksum (may be repeated)",
        [],
        nargs=2,
        action="append",
        metavar=("URL", "SHA256"),
    )
    add_option(
        parser, "--hub NAME", "models and data sets of the Hub: OWNER/NAME, dataset:OWNER/NAME or OWNER/NAME@REVISION", [], nargs="+"
    )
    add_option(parser, "--wheels REQUIREMENTS", "requirements file whose wheels to download into wheels/", type=Path)
    add_option(parser, "--evaluation NAME", "evaluation sets to download, by their names in `eval.prepare --list`", [], nargs="+")
    add_option(parser, "--mirror URL", "base address of a mirror of the evaluation sets (default: their publishers' addresses)")
    add_option(parser, "--environment", "pack the cluster's runtime.venv into one file, for runtime.node_dir", False)
    add_option(parser, "--check", "verify the checksums of everything in the cache", False)
    arguments = parser.parse_args(argv)
    cluster = cluster_of(arguments)
    if cluster.cache_dir is None:
        raise ValueError(f"the cluster {cluster.name} names no scratch directory; set it with --set scratch=DIRECTORY")
    cache_dir = Path(cluster.cache_dir)
    if arguments.check:
        return _check(cache_dir)
    fetch(arguments, cluster, cache_dir)
    return command.DONE


def fetch(arguments: argparse.Namespace, cluster: Cluster, cache_dir: Path) -> None:
    """Bring all that the arguments name, cheap checks of the arguments first."""
    files = [(url, require_sha256(checksum)) for url, checksum in arguments.file]
    repositories = [parse_repository(name) for name in arguments.hub]
    sets = read_sets(arguments.evaluation)
    for one in sets:
        if not one.fetch:
            raise ValueError(f"the files of {one.name} have to be downloaded manually: see {one.home}, and give them to eval.prepare")
    if arguments.wheels is not None and not arguments.wheels.is_file():
        raise ValueError(f"the requirements file {arguments.wheels} does not exist")
    if not (files or repositories or sets or arguments.wheels or arguments.image or arguments.environment):
        raise ValueError(
            "nothing to download; give --image, --file, --hub, --evaluation, --wheels or --environment, or --check to verify the cache"
        )
    if arguments.environment and cluster.runtime.venv is None:
        raise ValueError(f"the runtime of {cluster.name} is {cluster.runtime.kind} without runtime.venv: there is no environment to pack")
    for url, sha256 in files:
        _fetch_file(url, sha256, cache_dir)
    for repository in repositories:
        print(f"{repository.name}: {fetch_repository(repository, cache_dir)}")
    if sets:
        _fetch_sets(sets, arguments.mirror, cache_dir)
    if arguments.wheels is not None:
        _fetch_wheels(arguments.wheels, cache_dir)
    if arguments.image is not None:
        _fetch_image(arguments.image, cluster, cache_dir)
    if arguments.environment:
        _pack(ROOT / str(cluster.runtime.venv), cluster.packed_environment, cache_dir)


def _pack(venv: Path, packed: Path, cache_dir: Path) -> None:
    pack_environment(venv, packed)
    entry = add_to_record(cache_dir, packed, source=str(venv))
    print(f"{packed}: {entry.size / 2**30:.1f} GiB, all of {venv}")


def _fetch_sets(sets: Sequence[EvaluationSet], mirror: str | None, cache_dir: Path) -> None:
    """The published files of evaluation sets; their checksums are those of the first download, as publishers name none."""
    for source in dict.fromkeys(source for one in sets for source in one.fetch):
        if source.startswith(HUB):
            repository = parse_repository(source)
            print(f"{repository.name}: {fetch_repository(repository, cache_dir)}")
        else:
            url = source if mirror is None else f"{mirror.rstrip('/')}/{Path(urlparse(source).path).name}"
            _fetch_file(url, None, cache_dir)
    names = [one.name for one in sets]
    print(f"next: {command.suggested('eval.prepare', *names, '--source', cache_dir, '--output', 'eval_data')}")


def _fetch_file(url: str, sha256: str | None, cache_dir: Path) -> None:
    """A file into files/.

    Args:
        sha256: None for that of its first download.
    """
    name = Path(urlparse(url).path).name
    if not name:
        raise ValueError(f"{url} names no file")
    path = cache_dir / "files" / name
    if sha256 is None:
        known = read_record(cache_dir).get(path.relative_to(cache_dir).as_posix())
        sha256 = None if known is None else known.sha256
        if known is None and path.exists():
            raise ValueError(f"{path} exists, but its origin is not recorded; remove it, or download it with its checksum by --file")
    progress = Progress(name, total=None, unit="B", is_bytes=True)
    is_new = download(url, path, sha256=sha256, progress=progress)
    entry = add_to_record(cache_dir, path, source=url, sha256=sha256)
    description = f"SHA-256 {entry.sha256}" if sha256 is None else "checksum correct"
    print(f"{path}: {'downloaded' if is_new else 'already present'}, {description}")


def _fetch_wheels(requirements: Path, cache_dir: Path) -> None:
    target = cache_dir / "wheels"
    words = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--dest", str(target), "-r", str(requirements)]
    if subprocess.run(words, check=False).returncode:  # pip compares the index's checksums, and keeps what it has
        raise ValueError(f"pip could not download all wheels of {requirements}; its message is above, the same command resumes from there")
    for wheel in sorted(target.iterdir()):
        add_to_record(cache_dir, wheel, source=f"pip download -r {requirements}")
    print(f"{target}: install with `python -m pip install --no-index --find-links {target} -r {requirements}`")


def _fetch_image(source: str, cluster: Cluster, cache_dir: Path) -> None:
    if cluster.runtime.kind not in _PULL:
        raise ValueError(f"the runtime of {cluster.name} is {cluster.runtime.kind}, which takes no image")
    path = Path(cluster.image_path)
    if not path.is_relative_to(cache_dir):
        raise ValueError(f"runtime.image is {path}, which is outside the cache {cache_dir}; give it as a file name")
    known = read_record(cache_dir).get(path.relative_to(cache_dir).as_posix())
    if path.exists() and known is not None and known.source == source:
        require_content(path, known.sha256)
        print(f"{path}: already present, checksum correct")
        return
    if path.exists():
        raise ValueError(f"{path} was made from {known.source if known else 'another place'}; remove it to make it from {source}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    partial.unlink(missing_ok=True)
    words = [word.format(target=partial, source=source) for word in _PULL[cluster.runtime.kind]]
    if shutil.which(words[0]) is None:
        raise ValueError(f"{words[0]} is not installed on this machine; run this on a login node, where it may be a module")
    environment = {**os.environ, "APPTAINER_CACHEDIR": str(cache_dir / "layers"), "SINGULARITY_CACHEDIR": str(cache_dir / "layers")}
    if subprocess.run(words, check=False, env=environment).returncode:  # layers that are here are not fetched again
        raise ValueError(f"{words[0]} could not make {path} from {source}; its message is above, the same command resumes from there")
    os.replace(partial, path)
    entry = add_to_record(cache_dir, path, source=source)
    print(f"{path}: {entry.size / 2**30:.1f} GiB, SHA-256 {entry.sha256}")


def _check(cache_dir: Path) -> int:
    record = read_record(cache_dir)
    problems = check_record(cache_dir)
    hubs = [path for path in sorted((cache_dir / "huggingface" / "hub").glob("*--*")) if path.is_dir()]
    problems += [problem for path in hubs for problem in check_blobs(path)]
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{cache_dir}: {len(record)} files and {len(hubs)} repositories, {len(problems)} problems")
    return command.WRONG if problems else command.DONE


if __name__ == "__main__":
    command.run(main)
