"""Edit only the embedding and output layer of a Hugging Face checkpoint: untie, tie, append rows or tokens, keep some tokens.

For edits that need no embedding initialisation method; `conversion.transfer` gives a model the vocabulary of another language.  One edit per call:

  --untie               give the output layer its own matrix, a copy of the input embedding
  --tie                 use one matrix for both; refused unless they are equal bit for bit
  --append-rows N       append N rows that no token uses yet
  --append-tokens FILE  add the tokens of a file, one per line, with a row each; `new=old` copies the row of an old token, `new=old other`
                        takes their mean (tokens of a JSON list are taken literally)
  --keep FILE           keep the tokens of a file, a JSON list of tokens and ids or one token per line, and those that the tokenizer needs for them
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, check_files, read_manifest, staged_directory, write_manifest
from common.options import add_option
from common.progress import Progress, show
from conversion.checkpoints.summary import summary

if TYPE_CHECKING:
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.checkpoints.vocabulary_edit import Edit, Tables

STAGE = "conversion.edit_vocabulary"
NEW_ROWS = ("mean", "random")


def edit(input_dir: Path, output_dir: Path, change: Edit, *, arguments: dict[str, Any]) -> Manifest:
    """Write the checkpoint with an edited vocabulary.

    Args:
        change: one of the edits of `conversion.checkpoints.vocabulary_edit`, with its choices.
        arguments: of the command, for the manifest.

    Raises:
        ValueError: if the input is missing, corrupt or edited, if the edit is refused, if the output exists or the disk is full.
    """
    from common.allocation import return_freed_memory
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint, write_hf_weights
    from conversion.checkpoints.vocabulary_edit import Tables
    from conversion.formats.lazy_tensor import counted

    return_freed_memory()
    hf = HFCheckpoint.open(input_dir)
    manifest = read_manifest(hf.directory)
    if manifest is not None:
        check_files(hf.directory, manifest, contents=False)
    before = Tables.of(hf)
    after = change(before)
    tensors = list(after.tensors.values())
    total = sum(tensor.nbytes for tensor in tensors)
    with staged_directory(output_dir, required_bytes=total) as staging:
        with Progress("writing", total=total, unit="B", is_bytes=True) as progress:
            digests = write_hf_weights(staging, counted(tensors, progress.advance))
        for sentence in _write_companions(hf, after, staging):
            print(f"warning: {sentence}", file=sys.stderr)
        facts = {
            **(manifest.facts if manifest else {}),
            "model_type": hf.model_type,
            "vocab_size": after.rows,
            "tie_word_embeddings": after.is_tied,
            **after.facts,
        }
        if after.tokenizer_files is not None:
            from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest

            facts["tokenizer_digest"] = tokenizer_digest(load_tokenizer(staging))
        return write_manifest(staging, stage=STAGE, facts=facts, arguments=arguments, inputs={"hf": hf.digest()}, known_digests=digests)


def _write_companions(hf: HFCheckpoint, tables: Tables, staging: Path) -> list[str]:
    """Tokenizer, generation config, and config.json, whose bytes stay the same where no value changes; sentences about ids that are gone."""
    from conversion.checkpoints.config_ids import Renumbered, sees_nothing, with_new_ids
    from conversion.checkpoints.hf_checkpoint import copy_companions, copy_processor
    from conversion.checkpoints.hf_files import (
        CONFIG_NAME,
        GENERATION_CONFIG_NAME,
        in_words_of_both,
        read_json,
        tied_by_config,
        with_language_values,
        with_vocabulary,
    )
    from data_prep.tokenizers.files import write_tokenizer_files

    if tables.tokenizer_files is None:
        copy_companions(hf.directory, staging)
    else:
        write_tokenizer_files(staging, tables.tokenizer_files)
    lost: list[str] = []
    changes: dict[str, Any] = {}
    if tied_by_config(hf.config) != tables.is_tied:
        changes["tie_word_embeddings"] = tables.is_tied
    no_changes: dict[str, Any] = {}
    for name, own_changes in ((CONFIG_NAME, changes), (GENERATION_CONFIG_NAME, no_changes)):
        path = hf.directory / name
        if not path.is_file():
            continue
        old = read_json(path, expected="")
        translated = in_words_of_both(old, source=str(hf.directory)) if name == CONFIG_NAME else old
        renumbered = (
            with_new_ids(translated, tables.new_ids, num_rows=tables.rows) if tables.new_ids is not None else Renumbered(translated)
        )
        if name == CONFIG_NAME and tables.tokenizer_files is not None and not sees_nothing(renumbered):
            copy_processor(hf.directory, staging)
        lost += [f"{name} has {key} {token_id}, a token that is not kept: it is unset" for key, token_id in renumbered.lost]
        new = with_language_values(renumbered.config, **own_changes) if own_changes else renumbered.config
        if name == CONFIG_NAME and tables.layers.num_rows != tables.rows:
            new = with_vocabulary(new, rows=tables.rows, old_rows=tables.layers.num_rows)
        if new == old:
            shutil.copyfile(path, staging / name)
        else:
            (staging / name).write_text(json.dumps(new, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return lost


def _new_and_old(line: str) -> tuple[str, str]:
    """The new token of a line, and the old ones that it names behind the last =; a line such as `=` or `a=` is a token."""
    new, _, old = line.rpartition("=")
    return (new, old) if new and old.strip() else (line, "")


def _read_list(path: Path) -> tuple[list[str | int], bool]:
    """Tokens and ids from a JSON list, or a token per line; and whether it is JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not text.lstrip().startswith("["):
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")], False  # U+2028 and its kind may be tokens
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} begins like a JSON list but is none ({error})") from error
    if wrong := [item for item in content if isinstance(item, bool) or not isinstance(item, str | int)]:
        raise ValueError(f"{path} holds {wrong[0]!r}; expected tokens and ids")
    return list(content), True


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and edit."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input work/hf --untie --output work/hf_untied")
    add_option(parser, "--input", "Hugging Face checkpoint folder", type=Path, required=True)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    one = parser.add_mutually_exclusive_group(required=True)
    add_option(one, "--untie", "give the output layer its own matrix", False)
    add_option(one, "--tie", "use one matrix for input embedding and output layer", False)
    add_option(one, "--append-rows N", "number of unused rows to append", type=int)
    add_option(one, "--append-tokens FILE", "tokens to add", type=Path)
    add_option(one, "--keep FILE", "tokens to keep; all others are removed", type=Path)
    add_option(
        parser,
        "--new-rows",
        "initialisation of new rows: mean of all rows, or random with their mean and variance",
        "mean",
        choices=NEW_ROWS,
    )
    add_option(parser, "--seed", "random seed", 42)
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    show(f"{arguments.input}: reading")
    recorded = {key: value for key, value in vars(arguments).items() if value is not None and value is not False and key != "output"}
    manifest = edit(arguments.input, arguments.output, _edit(arguments), arguments=recorded)
    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    return command.DONE


def _edit(arguments: Any) -> Edit:
    from functools import partial

    from conversion.checkpoints import vocabulary_edit

    if arguments.untie:
        return vocabulary_edit.untie
    if arguments.tie:
        return vocabulary_edit.tie
    if arguments.keep is not None:
        return partial(vocabulary_edit.keep, requested=_read_list(arguments.keep)[0])
    listed, is_json = _read_list(arguments.append_tokens) if arguments.append_tokens is not None else ([], True)
    tokens = [token for token in listed if isinstance(token, str)]
    if len(tokens) < len(listed):
        raise ValueError(f"{arguments.append_tokens} holds numbers; expected tokens")
    pairs = [(token, "") if is_json else _new_and_old(token) for token in tokens]
    tokens, starts = [new for new, _ in pairs], {new: old.split() for new, old in pairs if old}
    return partial(
        vocabulary_edit.append,
        num_rows=len(tokens) if arguments.append_tokens is not None else arguments.append_rows,
        method=arguments.new_rows,
        seed=arguments.seed,
        tokens=tokens,
        starts=starts,
    )


if __name__ == "__main__":
    command.run(main)
