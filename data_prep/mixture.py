"""Make a training mixture: token budgets per language, corpus or domain, epochs per corpus, and held-out validation text.

Counts the tokens of every document with each --tokenizer (budgets are in tokens of the first), holds out --validation-share of each language in
whole groups of documents, and samples documents in a random order until each budget is met (with --weight-key in proportion to a number in the
document).  Writes the input of `data_prep.to_megatron`: `train/CORPUS/` and `validation/LANGUAGE/`, every text once.  Epochs become weights of the
blend (`blend.json`).  `report.md` has the tokens per corpus in every tokenizer (GaMS, table 1); `documents/` records where each document went.
The same input and options give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import command
from common.artifacts import Manifest, digest_file, write_manifest, written_aside
from common.options import add_option, add_options, option, values_of
from common.progress import SharedProgress, show
from data_prep.megatron.word_encoder import tell_if_slow, word_encoder
from data_prep.mixing.plan import Budget, Selector, chosen_corpora, fractions, ranks, ranks_by_weight, require_budgets
from data_prep.mixing.report import BLEND, MEGATRON, UNDETERMINED, CorpusCounts, Side, blend, megatron_inputs, next_steps, report
from data_prep.mixing.selection import Rows, Taker, Taking, cuts, held_out
from data_prep.mixing.shard import (
    LEFT_OUT,
    SIDES,
    TRAIN,
    VALIDATION,
    CountJob,
    ShardTable,
    Units,
    WriteJob,
    count_shard,
    key_of,
    prepare_to_count,
    show_progress,
    write_shard,
)
from data_prep.reading.corpora import Corpus, add_corpus_arguments, corpora_from_arguments, require_text, write_corpus_table
from data_prep.reading.documents import add_format_arguments
from data_prep.sharing import on_ray
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import ordered_map, resumable_directory, shard_names
from data_prep.tokenizers.files import load_tokenizer, start_without_torch, tokenizer_digest
from data_prep.tokenizers.frame import add_bos_argument, document_front

_HELD_OUT, _NEVER = -1, -2
_CONTENTS = ("budgets", "total", "epochs", "leave_out", "weight_keys", "sentences")


@dataclass(frozen=True)
class MixtureRules:
    """What the mixture is to be.

    Attributes:
        budgets, total: see `fractions`.
        epochs: corpus -> how often training sees each of its documents.
        leave_out: corpora that do not take part.
        sentences: so many sentences of each language in place of documents; None for documents.
        validation_share: of each language's tokens.
        group_key: the key of a JSON line whose documents stay on one side.
        weight_keys: (corpus, key of a number as `data_prep.cleaning.scores.value_at` finds it): documents of a budget are taken in proportion to it,
            and those of 0 not at all; a corpus of "" stands for those that are not named.
    """

    budgets: tuple[Budget, ...] = option(
        "--budget KEY:VALUE=N", "tokens (3e9) or share (75%%) of a language, corpus or domain, epochs included", (), nargs="+"
    )
    total: float | None = option("--tokens N", "total tokens of all shares, epochs included (default: as many as the data allow)", type=str)
    epochs: tuple[tuple[str, float], ...] = option(
        "--epochs CORPUS=N", "number of times that training reads a corpus (default: 1)", (), nargs="+"
    )
    leave_out: tuple[Selector, ...] = option("--leave-out KEY:VALUE", "corpora to leave out, for example domain:web", (), nargs="+")
    weight_keys: tuple[tuple[str, str], ...] = option(
        "--weight-key KEY",
        "sample documents in proportion to this number in the document, such as score or doc_scores.0; CORPUS=KEY for one corpus",
        (),
        nargs="+",
    )
    sentences: int | None = option("--sentences N", "take N sentences of each language, in place of documents")
    validation_share: float = option("--validation-share SHARE", "share of each language's tokens to hold out", 0.0005)
    group_key: str = option("--group-key KEY", "key whose value groups documents that must stay together", "group")
    seed: int = option("--seed N", "random seed of the sampling", 0)

    def require_sense(self, corpora: Sequence[Corpus]) -> list[Corpus]:
        """The corpora that take part.

        Raises:
            ValueError: if the rules contradict themselves or the corpora.
        """
        chosen = chosen_corpora(corpora, self.leave_out)
        require_budgets(self.budgets, chosen, self.total)
        for name, number in self.epochs:
            if name not in {corpus.name for corpus in chosen}:
                raise ValueError(f"--epochs {name}: there is no such corpus; there are {', '.join(corpus.name for corpus in chosen)}")
            if not 0 < number < float("inf"):
                raise ValueError(f"--epochs {name}={number:g}: expected a number above 0")
        if self.sentences is not None and (self.budgets or self.sentences < 1):
            raise ValueError("--sentences takes a number of sentences from each language, and no --budget beside it")
        self._require_weights_that_count(chosen)
        if not 0 <= self.validation_share < 0.5:
            raise ValueError(f"--validation-share is {self.validation_share:g}; expected a share from 0 to less than 0.5, such as 0.0005")
        return chosen

    def _require_weights_that_count(self, chosen: Sequence[Corpus]) -> None:
        for name, key in self.weight_keys:
            if name and name not in {corpus.name for corpus in chosen}:
                raise ValueError(
                    f"--weight-key {name}={key}: there is no such corpus; there are {', '.join(corpus.name for corpus in chosen)}"
                )
        if self.weight_keys and not (self.budgets or self.sentences):
            raise ValueError(
                "--weight-key says which documents a budget takes, but everything is taken; give --budget or --sentences beside it"
            )


@dataclass(frozen=True)
class Shard:
    """A file of a corpus; `name` is CORPUS/FILE."""

    path: Path
    corpus: Corpus
    name: str

    def table_path(self, scratch: Path) -> Path:
        """Where its documents are counted."""
        return scratch / f"{self.name}.npz"

    def sides_path(self, scratch: Path) -> Path:
        """Where the side of each document is written."""
        return scratch / f"{self.name}.sides.npy"


def mixture(
    corpora: Sequence[Corpus],
    tokenizers: dict[str, Path],
    output_dir: Path,
    *,
    rules: MixtureRules | None = None,
    reading: Reading | None = None,
    workers: int = 1,
    bos: str = "auto",
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write the mixture into a new directory and return its manifest.

    Memory: the table of a shard, some 40 bytes a document of it; see `decide`.

    Args:
        tokenizers: name -> folder; budgets are in tokens of the first.
        bos: what will stand in front of each document, see `document_front`; counted too.

    Raises:
        ValueError: if rules and corpora do not fit, a file cannot be read or the disk is full; counted shards wait for the same call.
    """
    rules, reading = rules or MixtureRules(), reading or Reading()
    chosen = rules.require_sense(corpora)
    require_text(chosen, reading.documents)
    loaded = {name: load_tokenizer(directory) for name, directory in tokenizers.items()}
    digests = {name: tokenizer_digest(tokenizer) for name, tokenizer in loaded.items()}
    reasons = {name: tell_if_slow(word_encoder(tokenizer.backend_tokenizer), f"tokenizer {name}") for name, tokenizer in loaded.items()}
    fronts = [document_front(tokenizer, bos) for tokenizer in loaded.values()]
    units = Units(reading, rules.group_key, rules.sentences is not None, rules.weight_keys)
    # What is counted depends on; the rest is decided anew from the counts, so that another budget loses none of them.
    plan = {
        "stage": "data_prep.mixture",
        "units": asdict(units),
        "corpora": [[corpus.name, corpus.facts, *map(str, corpus.paths)] for corpus in chosen],
        "tokenizers": digests,
        "fronts": fronts,
    }
    paths = [path for corpus in chosen for path in corpus.paths]
    with resumable_directory(output_dir, plan) as (directory, scratch):
        shards = [
            Shard(path, corpus, f"{corpus.name}/{name}") for corpus in chosen for path, name in zip(corpus.paths, shard_names(corpus.paths))
        ]
        _count(shards, units, list(tokenizers.values()), fronts, scratch, workers)
        counts = decide(chosen, shards, scratch, rules, num_tokenizers=len(tokenizers))
        if not any(count.train.documents for count in counts):
            raise ValueError(f"no document is left for training in {', '.join(map(str, paths))}; give more text or larger budgets")
        _write(shards, units, tuple(tokenizers), directory, scratch, workers)
        weighted = {corpus.name: key for corpus in chosen if (key := key_of(corpus.name, rules.weight_keys))}
        (directory / "report.md").write_text(report(counts, list(tokenizers), weighted), encoding="utf-8")
        (directory / BLEND).write_text(json.dumps(blend(counts), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        facts = {
            "weight_keys": weighted,
            "tokenizer_digests": digests,
            "not_by_words_because": reasons,
            "corpora": [asdict(count) for count in counts],
            "blend": blend(counts),
        }
        return write_manifest(
            directory,
            stage="data_prep.mixture",
            facts=facts,
            arguments=vars(arguments) if arguments else None,
            inputs={str(path): digest_file(path) for path in paths},
        )


def _count(
    shards: Sequence[Shard], units: Units, tokenizers: Sequence[Path], fronts: Sequence[Sequence[int]], scratch: Path, workers: int
) -> None:
    jobs = [CountJob(shard.path, shard.corpus.name, shard.table_path(scratch), units) for shard in shards]
    size = sum(shard.path.stat().st_size for shard in shards)
    with SharedProgress("counting tokens", total=size, unit="B", is_bytes=True) as progress:
        prepared = (tokenizers, fronts, workers == 1, progress)
        for _ in ordered_map(
            count_shard, jobs, workers=workers, name=lambda job: str(job.path), initializer=prepare_to_count, initargs=prepared
        ):
            pass


def _write(shards: Sequence[Shard], units: Units, tokenizers: tuple[str, ...], directory: Path, scratch: Path, workers: int) -> None:
    """Write `train/`, `validation/`, `documents/` and the corpus table; a shard with nothing on a side has no file there."""
    for part in ("train", "validation", "documents"):
        shutil.rmtree(directory / part, ignore_errors=True)  # of an earlier run
    jobs = []
    for shard in shards:
        held_out = directory / "validation" / _language(shard.corpus) / shard.name.replace("/", "-")
        targets = directory / "train" / shard.name, held_out, directory / "documents" / shard.name
        jobs.append(
            WriteJob(shard.path, shard.corpus.name, units, shard.table_path(scratch), shard.sides_path(scratch), tokenizers, *targets)
        )
    size = sum(shard.path.stat().st_size for shard in shards)
    with SharedProgress("writing", total=size, unit="B", is_bytes=True) as progress:
        for _ in ordered_map(
            write_shard, jobs, workers=workers, name=lambda job: str(job.path), initializer=show_progress, initargs=(progress,)
        ):
            pass
    for job in jobs:
        side = np.load(job.sides_path)
        for target, number in ((job.train_path, TRAIN), (job.validation_path, VALIDATION)):
            if not (side == number).any():
                target.unlink()
            if not any(target.parent.iterdir()):
                target.parent.rmdir()
    files: dict[str, list[str]] = {}
    for shard, job in zip(shards, jobs):
        if job.train_path.exists():
            files.setdefault(shard.corpus.name, []).append(f"train/{shard.name}")
    kept = dict.fromkeys(shard.corpus for shard in shards if shard.corpus.name in files)
    write_corpus_table(directory, list(kept), files)


def _language(corpus: Corpus) -> str:
    return corpus.language or UNDETERMINED


def decide(
    corpora: Sequence[Corpus], shards: Sequence[Shard], scratch: Path, rules: MixtureRules, *, num_tokenizers: int
) -> list[CorpusCounts]:
    """Write the side of each document of each shard, and count what each corpus has on each.

    The tables of the shards are read one after the other, some six times; memory is a 4,096th of the documents, and those held out.
    """
    languages = sorted({_language(corpus) for corpus in corpora})
    number_of = {corpus: number for number, corpus in enumerate(corpora)}

    def tables() -> Iterator[tuple[Shard, ShardTable]]:
        for shard in shards:
            yield shard, ShardTable.load(shard.table_path(scratch))

    def groups() -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]]:
        for shard, table in tables():
            language = languages.index(_language(shard.corpus))
            yield np.full(len(table), language), ranks(table.groups, rules.seed), table.tokens[:, 0]

    out = held_out(groups, rules.validation_share)

    def kinds() -> Iterator[tuple[Shard, ShardTable, NDArray[np.int64], Rows]]:
        """Of each document the number of its corpus, or of its language where sentences are taken; or `_HELD_OUT`, or `_NEVER`."""
        for shard, table in tables():
            by_sentence = rules.sentences is not None
            kind = languages.index(_language(shard.corpus)) if by_sentence else number_of[shard.corpus]
            is_out = np.isin(ranks(table.groups, rules.seed), out)
            weights = np.ones(len(table), np.int64) if by_sentence else table.tokens[:, 0]
            order = ranks(table.ids, rules.seed)
            if rules.weight_keys:
                order = ranks_by_weight(order, table.weights)
            yield shard, table, np.select([is_out, table.weights == 0], [_HELD_OUT, _NEVER], kind), (order, weights)

    takings = {kind: Taking() for kind in range(len(languages if rules.sentences is not None else corpora))}
    for _, _, kind, (order, weights) in kinds():
        for number in np.unique(kind[kind >= 0]).tolist():
            takings[number].add(order[kind == number], weights[kind == number])
    found = cuts(takings, _wanted(corpora, languages, takings, rules), lambda: ((kind, rows) for _, _, kind, rows in kinds()))
    takers = {number: Taker(cut) for number, cut in found.items()}
    counts = {corpus: [Side.none(num_tokenizers) for _ in SIDES] for corpus in corpora}
    for shard, table, kind, (order, _) in kinds():
        side = np.where(kind == _HELD_OUT, VALIDATION, LEFT_OUT).astype(np.uint8)
        for number in np.unique(kind[kind >= 0]).tolist():
            here = np.flatnonzero(kind == number)
            side[here[takers[number].take(order[here])]] = TRAIN
        with written_aside(shard.sides_path(scratch)) as file:
            np.save(file, side)
        for which, before in enumerate(counts[shard.corpus]):
            counts[shard.corpus][which] = before.plus(_side(table, side == which))
    epochs = dict(rules.epochs)
    return [
        CorpusCounts(
            corpus.name, _language(corpus), corpus.domain, epochs.get(corpus.name, 1.0), *(counts[corpus][n] for n in (TRAIN, VALIDATION, LEFT_OUT))
        )
        for corpus in corpora
    ]  # fmt: skip


def _wanted(corpora: Sequence[Corpus], languages: Sequence[str], takings: dict[int, Taking], rules: MixtureRules) -> dict[int, float]:
    """How much of each corpus, or language, is taken; what is not named is taken whole."""
    if rules.sentences is not None:
        return dict.fromkeys(range(len(languages)), float(rules.sentences))
    available = {corpus.name: takings[number].total for number, corpus in enumerate(corpora)}
    shares = fractions(rules.budgets, corpora, available, dict(rules.epochs), rules.total)
    return {n: shares[corpus.name] * available[corpus.name] for n, corpus in enumerate(corpora) if shares[corpus.name] != 1}


def _side(table: ShardTable, rows: NDArray[np.bool_]) -> Side:
    tokens = tuple(table.tokens[rows].sum(axis=0).tolist())
    return Side(int(rows.sum()), int(table.text_bytes[rows].sum()), tokens, float(table.weights[rows].sum()))


def _pairs(arguments: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{option} {argument} is not of the form NAME=VALUE")
        if name in pairs:
            raise ValueError(f"{option} names {name} twice")
        pairs[name] = value
    return pairs


def _weight_keys(arguments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Of KEY and CORPUS=KEY; the former for all corpora that are not named."""
    for_all = [argument for argument in arguments if "=" not in argument]
    if len(for_all) > 1:
        raise ValueError(f"--weight-key gives {' and '.join(for_all)} for all corpora; give one of them, or CORPUS=KEY")
    named = _pairs([argument for argument in arguments if "=" in argument], "--weight-key")
    return (*(("", key) for key in for_all), *named.items())


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{option} is {text!r}; expected a number") from error


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m data_prep.mixture --corpora deduplicated/corpora.yaml --tokenizer new=tokenizer/ old=opt-1.3b"
        " --budget language:it=75% language:en=25% --tokens 3e9 --epochs novels=4 --leave-out domain:web --output mixture/",
    )
    add_corpus_arguments(parser, order="the order is kept")
    add_format_arguments(parser)
    add_option(
        parser, "--tokenizer NAME=DIR", "tokenizers to count tokens with; budgets are in tokens of the first", nargs="+", required=True
    )
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    add_option(
        parser,
        "--megatron DIR",
        f"also tokenize the mixture, as data_prep.to_megatron does, into DIR (default: OUTPUT/{MEGATRON}); for a recipe's data.train",
        type=Path,
        nargs="?",
        const=Path(MEGATRON),
    )
    what = parser.add_argument_group("contents of the mixture (default: every document, once)")
    add_options(what, MixtureRules, *_CONTENTS)
    add_options(parser.add_argument_group("held-out text"), MixtureRules, "validation_share", "group_key")
    run = parser.add_argument_group("running")
    add_bos_argument(run)
    add_options(run, MixtureRules, "seed")
    command.add_running_arguments(run, skips_bad=False)
    on_ray.add_argument(run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Make a mixture in a new directory."""
    arguments = _parser().parse_args(argv)
    command.require_positive(arguments)
    inside = arguments.output / MEGATRON
    if arguments.megatron == Path(MEGATRON):
        arguments.megatron = inside
    if arguments.megatron is not None and arguments.megatron.is_dir() and any(arguments.megatron.iterdir()):
        raise ValueError(f"the directory {arguments.megatron} exists and is not empty; remove it or choose another --megatron")
    rules = values_of(arguments, MixtureRules) | {
        "budgets": tuple(map(Budget.parse, arguments.budget)),
        "total": _number(arguments.tokens, "--tokens") if arguments.tokens is not None else None,
        "epochs": tuple((name, _number(value, f"--epochs {name}")) for name, value in _pairs(arguments.epochs, "--epochs").items()),
        "leave_out": tuple(Selector.parse(text, "--leave-out") for text in arguments.leave_out),
        "weight_keys": _weight_keys(arguments.weight_key),
    }
    show("mixture: loading tokenizers")
    work = partial(
        mixture,
        corpora_from_arguments(arguments, arguments.document_separator),
        {name: Path(folder) for name, folder in _pairs(arguments.tokenizer, "--tokenizer").items()},
        arguments.output,
        rules=MixtureRules(**rules),
        reading=Reading.of(arguments),
        workers=arguments.workers,
        bos=arguments.bos,
        arguments=arguments,
    )
    manifest = on_ray.share(arguments, "data_prep.mixture", work)
    command.print_report(arguments.output)
    folder = arguments.tokenizer[0].partition("=")[2]
    steps = next_steps(arguments.output, manifest.facts["blend"], folder, arguments.megatron or inside, bos=arguments.bos)
    print(f"\nNext:\n\n{steps}", end="", flush=True)
    return _to_megatron(arguments, manifest.facts["blend"], folder) if arguments.megatron else command.DONE


def _to_megatron(arguments: argparse.Namespace, made: dict[str, Any], tokenizer: str) -> int:
    """Run `data_prep.to_megatron` for each corpus and the validation text; the first exit code that is not 0, or 0."""
    options = ["--tokenizer", tokenizer, "--bos", arguments.bos, "--workers", str(arguments.workers)]
    options += ["--ray", arguments.ray] if arguments.ray is not None else []
    for name, paths in megatron_inputs(arguments.output, made).items():
        words = [
            sys.executable,
            "-m",
            "data_prep.to_megatron",
            "--input",
            *map(str, paths),
            *options,
            "--output",
            str(arguments.megatron / name),
        ]
        code = subprocess.run(words).returncode
        if code:
            return code
    if arguments.megatron.parent != arguments.output:
        shutil.copyfile(arguments.output / BLEND, arguments.megatron / BLEND)
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
