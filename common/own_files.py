"""Checks that the files of a folder lie inside it: a link in a downloaded folder could copy any file of this machine into an output."""

from __future__ import annotations

from pathlib import Path

_MAX_BYTES = 255  # of a name, on every usual file system


def require_own(path: Path) -> Path:
    """The path, if what it leads to lies in its folder, or in the cache of the Hugging Face hub that the folder is of.

    A cache keeps `snapshots/REVISION/NAME` as links to `blobs/DIGEST` beside it; the links may go by way of other folders.

    Raises:
        ValueError: if it leads elsewhere.
    """
    folder, found = path.parent.resolve(), _end_of(path)
    own = [folder, *(above.parent / "blobs" for above in folder.parents if above.name == "snapshots")]
    if not any(found.is_relative_to(place) for place in own):
        raise ValueError(f"{path} is a link to {found}, outside its folder; put the file itself there if it belongs to it")
    return path


def require_all_own(directory: Path) -> None:
    """Hold every file below a folder to that.

    Raises:
        ValueError: if one is a link that leads out of the folder, or nowhere.
    """
    root = directory.resolve()
    for path in directory.rglob("*"):
        if not path.is_symlink():
            continue
        found = _end_of(path)
        if not found.is_relative_to(root):
            raise ValueError(f"{path} is a link to {found}, outside {directory}; put the file itself there if it belongs to it")
        if not found.exists():
            raise ValueError(f"{path} is a link to {found}, which does not exist; remove the link, or put the file itself there")


def _end_of(path: Path) -> Path:
    """What a path leads to by all its links.

    Raises:
        ValueError: if they go in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError as error:
        raise ValueError(f"{path} is a link that leads back to itself; remove it, or put the file itself there") from error


def is_plain_name(name: object) -> bool:
    """A name without a folder, so that a downloaded index leads nowhere else, that a file system can have."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", "..") or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _MAX_BYTES and not any("\ud800" <= letter <= "\udfff" for letter in name)
