"""Write the file of a new project, with comments and values for this machine, or with --recipe of a new recipe.

On a terminal, asks for what the options leave open.  `scion run FILE` then goes from the text to the report.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.devices import has_gpu
from common.options import add_option
from common.plain_files import write_text
from recipes.projects.project import load_project
from recipes.projects.template import Answers, project_text, recipe_text

_TOKENS = {"cpu": 20_000, "gpu": 50_000_000}  # of each training: minutes on two cores, hours on one GPU
_VOCABULARY = ("expand", 2000)
_SMALL_TEXT_BYTES = 20 << 20  # of which a hundredth is too little to tell models apart
_MOST_PROCESSES = 2  # on a CPU, each of which holds the model and the optimizer's state


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    parser = command.parser(
        __doc__, example="python -m recipes.init slovene.yaml --source llama-3.2-1b/ --language sl=texts/ en=english.jsonl.gz"
    )
    parser.add_argument("file", nargs="?", type=Path, help="file to write (default: project.yaml, with --recipe recipe.yaml)")
    add_option(
        parser, "--source", "source model: a folder, OWNER/NAME on the Hugging Face Hub, a GGUF file, or smollm2 (135M, downloaded once)"
    )
    add_option(parser, "--language CODE=PATH", "text files or folders of each language", [], nargs="+", action="extend")
    add_option(
        parser, "--heldout CODE=FILE", "held-out text to evaluate on (default: 1%% of the documents)", [], nargs="+", action="extend"
    )
    add_option(parser, "--source-language CODE", "language of the source model", "en")
    add_option(
        parser,
        "--vocabulary KIND[=N]",
        "what to do with the vocabulary: expand=N, swap=N, replace=N (N: tokens) or keep (default: expand=2000)",
    )
    add_option(parser, "--tokens N", "tokens to train on in each run (default: enough for minutes on a CPU, for hours on a GPU)", type=int)
    add_option(parser, "--recipe", "write a recipe instead of a project", False)
    arguments = parser.parse_args(argv)
    file = arguments.file or Path("recipe.yaml" if arguments.recipe else "project.yaml")
    if file.suffix not in (".yaml", ".yml"):
        raise ValueError(f"the file name {file} does not end in .yaml; choose a name such as slovene.yaml")
    if file.exists():
        raise ValueError(f"{file} exists; remove it or choose another name")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"the folder of {file} does not exist; make it, or choose another place")
    if arguments.recipe:
        write_text(file, recipe_text(file.stem))
        print(f"{file}: next, `{command.suggested('recipes.plan', '--recipe', file)}`, or `training: {{recipe: {file}}}` in a project")
        return command.DONE
    text = project_text(_answers(arguments, file.absolute().parent))
    _require_sound(text, file)
    write_text(file, text)
    print(f"{file}: {len(text.splitlines())} lines; next, `scion run {shlex.quote(str(file))}`")
    return command.DONE


def _require_sound(text: str, file: Path) -> None:
    """Refuse answers of which no project can be made, before the file is there."""
    draft = file.with_name(f".{file.stem}.draft.yaml")
    try:
        draft.write_text(text, encoding="utf-8")
        load_project(draft)
    except ValueError as error:
        raise ValueError(str(error).replace(str(draft), str(file))) from None
    finally:
        draft.unlink(missing_ok=True)


def _answers(arguments: argparse.Namespace, folder: Path) -> Answers:
    source = arguments.source or _ask("--source", "Source model (a folder, OWNER/NAME on the Hugging Face Hub, or smollm2)")
    languages = arguments.language or _ask("--language", "New language and its text, such as sl=texts/ or sl=a.txt").split()
    if not arguments.language and _is_asked():
        source_text = _ask(
            "--language", f"Text in {arguments.source_language} to replay against forgetting (a path, or empty for none)", may_be_empty=True
        )
        languages += [f"{arguments.source_language}={source_text}"] if source_text else []
    texts: dict[str, list[str]] = {}
    for code, path in _pairs(languages, "--language"):
        texts.setdefault(code, []).append(_relative(path, folder))
    heldout = {code: _relative(path, folder) for code, path in _pairs(arguments.heldout, "--heldout")}
    if unknown := sorted(heldout.keys() - texts.keys()):
        raise ValueError(f"--heldout names {unknown[0]}, of which --language has no texts; the languages are {', '.join(texts)}")
    if Path(source).expanduser().exists():
        source = _relative(source, folder)
    device = "gpu" if has_gpu() else "cpu"
    processes = _num_gpus() if device == "gpu" else min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    share = 0.05 if sum(_size(folder / path) for paths in texts.values() for path in paths) < _SMALL_TEXT_BYTES else 0.01
    return Answers(
        source,
        texts,
        heldout,
        arguments.source_language,
        _vocabulary(arguments.vocabulary),
        arguments.tokens or _TOKENS[device],
        processes,
        device,
        share,
    )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _vocabulary(text: str | None) -> tuple[str, int]:
    if text is None:
        return _VOCABULARY
    kind, equals, size = text.partition("=")
    if (
        kind not in ("expand", "swap", "replace", "keep")
        or bool(equals) == (kind == "keep")
        or (equals and not (size.isdecimal() and int(size)))
    ):
        raise ValueError(f"--vocabulary is {text!r}; expected expand=N, swap=N, replace=N or keep, for example expand=2000")
    return kind, int(size or 0)


def _pairs(arguments: Sequence[str], option: str) -> list[tuple[str, str]]:
    """CODE=PATH; a path without a code is of the language before it."""
    pairs: list[tuple[str, str]] = []
    for argument in arguments:
        code, equals, path = argument.partition("=")
        if not equals and pairs:
            code, path = pairs[-1][0], argument
        if not code or not path or "/" in code:
            raise ValueError(f"{option} {argument} is not of the form CODE=PATH, for example sl=texts/")
        pairs.append((code, path))
    return pairs


def _relative(path: str, folder: Path) -> str:
    """As the project's file has it: relative to its folder where it was given so."""
    if Path(path).expanduser().is_absolute():
        return path
    return os.path.relpath(path, folder)


def _is_asked() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _ask(option: str, question: str, *, may_be_empty: bool = False) -> str:
    if not _is_asked():
        raise ValueError(f"{option} is missing; give it, or answer on a terminal")
    while not (answer := input(f"{question}: ").strip()) and not may_be_empty:
        pass
    return answer


if __name__ == "__main__":
    command.run(main)
