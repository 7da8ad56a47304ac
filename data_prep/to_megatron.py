"""Tokenize documents for training: text -> Megatron's `.bin` and `.idx`, with an end-of-text token after each document.

Each document begins as the tokenizer's post-processor has it (Gemma, Llama: `<bos>`), or as --bos says.  Text that spells a special token
(`</s>`) stays text: only the end of a document is an end-of-text token.  Empty documents are skipped and counted.  Token ids are identical to those
of the tokenizer's own library, which is checked on sample documents at the end; the same input gives the same bytes for any number of --workers.

Each input file is a shard.  A run that was interrupted keeps its finished shards in `.OUTPUT.unfinished`, and the same command resumes with the
others.  In a Slurm array, give each task its own files and output, and join the outputs with `data_prep.join_megatron`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common import command
from common.artifacts import Manifest, write_manifest
from common.options import add_option
from common.progress import SharedProgress, show
from data_prep.megatron.index import STAGE, dataset_summary, token_dtype, totals
from data_prep.megatron.shard import MAX_SAMPLES, ShardRecord, Work, check, join, shard_part, tokenize_shard
from data_prep.megatron.word_encoder import tell_if_slow, word_encoder
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import add_input_arguments, require_text_files
from data_prep.sharing import on_ray
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import ordered_map, resumable_directory
from data_prep.tokenizers.files import load_tokenizer, rows_needed, start_without_torch, tokenizer_digest
from data_prep.tokenizers.frame import add_bos_argument, document_front, front_facts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


_WORK: list[Work] = []  # of this process


def to_megatron(
    paths: Sequence[Path],
    tokenizer: PreTrainedTokenizerFast,
    output_dir: Path,
    *,
    reading: Reading | None = None,
    workers: int = 1,
    bos: str = "auto",
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write documents as an indexed dataset into a new directory and return its manifest.

    Args:
        bos: what stands in front of each document, see `document_front`.

    Raises:
        ValueError: if the tokenizer has no end-of-text token, a file cannot be read, there is no text or the disk is full; finished shards
            wait for the same call.
    """
    reading = reading or Reading()
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer in {tokenizer.name_or_path} has no end-of-text token, which must end each document;"
            " set eos_token in its tokenizer_config.json"
        )
    front = document_front(tokenizer, bos)
    require_text_files(paths, reading.separator)
    vocab_size = rows_needed(tokenizer)
    dtype = token_dtype(vocab_size)
    encoders = word_encoder(tokenizer.backend_tokenizer).for_threads(workers // len(paths))
    facts = {
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "vocab_size": vocab_size,
        "eos_token_id": tokenizer.eos_token_id,
        **front_facts(tokenizer, front),
    }
    reason = tell_if_slow(encoders[0], f"the tokenizer in {tokenizer.name_or_path}")
    plan = {"stage": STAGE, **facts, "reading": asdict(reading), "inputs": list(map(str, paths))}
    with resumable_directory(output_dir, plan) as (directory, scratch):
        try:
            jobs = [(path, scratch / f"{number:05d}") for number, path in enumerate(paths)]
            with SharedProgress("tokenizing", total=sum(path.stat().st_size for path in paths), unit="B", is_bytes=True) as progress:
                work = Work(encoders, front, tokenizer.eos_token_id, dtype, reading, progress)
                found = ordered_map(
                    _run, jobs, workers=min(workers, len(jobs)), name=lambda job: str(job[0]), initializer=_begin, initargs=(work,)
                )
                records = []
                for number, record in enumerate(found):
                    if number % -(-len(jobs) // MAX_SAMPLES):
                        record.samples.clear()  # of many shards only some are sampled: this process holds the texts
                    records.append(record)
            if not any(record.num_documents for record in records):
                for file in scratch.iterdir():
                    file.unlink()  # nothing to go on with
                raise _no_text(records)
        finally:
            _WORK.clear()
        digests = join((shard_part(stem, record) for (_, stem), record in zip(jobs, records)), directory, dtype)
        checked = check(directory, records, tokenizer.backend_tokenizer, tokenizer.eos_token_id, front=front)
        return write_manifest(
            directory,
            stage=STAGE,
            facts={
                **facts,
                **({"not_by_words_because": reason} if reason else {}),
                **totals([record.as_facts() for record in records]),
                **checked,
            },
            arguments=vars(arguments) if arguments else None,
            inputs={record.source: record.source_digest for record in records},
            known_digests=digests,
        )


def _begin(work: Work) -> None:
    _WORK[:] = [work]
    if multiprocessing.parent_process() is not None:  # the library's threads do not survive a fork: it would wait for them forever
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _run(job: tuple[Path, Path]) -> ShardRecord:
    [work] = _WORK
    path, stem = job
    return tokenize_shard(path, stem, work)


def _no_text(records: Sequence[ShardRecord]) -> ValueError:
    names = ", ".join(record.source for record in records)
    num_empty = sum(record.num_empty_documents for record in records)
    return ValueError(f"there is no text in {names} ({num_empty} empty documents); give files with text")


def main(argv: Sequence[str] | None = None) -> int:
    """Tokenize files into a directory of `text.bin`, `text.idx`, `lines.npy` and `scion.json`."""
    parser = command.parser(__doc__, example="python -m data_prep.to_megatron --input news.jsonl.gz --tokenizer tokenizer/ --output data/")
    add_input_arguments(parser)
    add_option(parser, "--tokenizer DIR", "folder of a Hugging Face tokenizer", type=Path, required=True)
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    add_bos_argument(parser)
    command.add_running_arguments(parser)
    on_ray.add_argument(parser)
    arguments = parser.parse_args(argv)
    command.require_positive(arguments)
    paths = text_files(arguments.input)
    if twice := [path for path, times in Counter(path.resolve() for path in paths).items() if times > 1]:
        raise ValueError(f"the input file {twice[0]} is given twice, so that its text would count twice; name each file once")
    show(f"{len(paths)} file{'s' * (len(paths) > 1)} by {arguments.tokenizer}: loading the tokenizer")
    # Read once, by the tokenizer library's thread pool at its first use; used where there is one file whose tokenizer's words are not kept.
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    work = partial(
        to_megatron,
        paths,
        load_tokenizer(arguments.tokenizer),
        arguments.output,
        reading=Reading.of(arguments),
        workers=arguments.workers,
        bos=arguments.bos,
        arguments=arguments,
    )
    manifest = on_ray.share(arguments, STAGE, work)
    print(dataset_summary(arguments.output, manifest))
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
