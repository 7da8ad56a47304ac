"""Names for the models of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def named_checkpoints(arguments: Sequence[str], *, option: str = "--model") -> dict[str, Path]:
    """Names for folders of models or runs: `NAME=FOLDER` as given, else the shortest end of the paths that tells the unnamed ones apart.

    Args:
        option: that they were given with.

    Raises:
        ValueError: if two have the same name or one folder is given twice.
    """
    named = [_split_name(argument) for argument in arguments]
    folders = [folder for _, folder in named]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ValueError(f"{option} gives {folder} more than once; give each folder once")
    unnamed = [folder for name, folder in named if name is None]
    depth = 1
    while len({folder.parts[-depth:] for folder in unnamed}) < len(unnamed):
        depth += 1
    result: dict[str, Path] = {}
    for name, folder in named:
        name = name or "-".join(folder.parts[-depth:])
        if name in result:
            raise ValueError(
                f"two {'models' if option == '--model' else 'folders'} are called {name}; give one of them another name with {option} NAME=FOLDER"
            )
        result[name] = folder
    return result


def _split_name(argument: str) -> tuple[str | None, Path]:
    name, equals, folder = argument.partition("=")
    if equals and name and folder and "/" not in name:
        return name, Path(folder).resolve()
    return None, Path(argument).resolve()
