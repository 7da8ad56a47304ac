"""Train tokenizers on text of the new language (SentencePiece BPE or Unigram, or byte-level BPE) and export Hugging Face fast tokenizers.

Several values of --vocab-size and --model are trained from one reading of the text, into folders MODEL-SIZE of the output.  Before a SentencePiece
model is kept, its token ids are checked to be equal in both libraries on every word of the training text and on adversarial strings.  Text is not
normalised (`identity`) and, with byte fallback, decoding restores what was encoded, line breaks and emoji included.  (Only a literal U+2581,
SentencePiece's mark for a space, comes back as a space.)
The special tokens are those of GaMS, with their ids in OPT: <s> 0, <pad> 1, </s> 2, <unk> 3; an encoder also needs <mask>, the last id
(--mask-token), as in RoBERTa and XLM-R.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import Manifest, digest_file, staged_directory, write_manifest
from common.options import add_option
from data_prep.reading.corpora import Corpus, add_corpora_argument, corpora_from_table, require_text, text_files
from data_prep.reading.documents import SUFFIXES_IN_WORDS, Documents, add_format_arguments, read_documents, require_text_files
from data_prep.sharing import on_ray
from data_prep.tokenizers.comparison import candidates, tokenizer_report
from data_prep.tokenizers.files import load_tokenizer, start_without_torch, tokenizer_digest
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS
from data_prep.tokenizers.sentencepiece_to_hf import MASK_TOKEN, add_mask_token, export, require_equal_ids, write_fast_tokenizer
from data_prep.tokenizers.training import KINDS, SPECIAL_TOKEN_IDS, SPECIAL_TOKENS, train_byte_level, train_sentencepiece
from data_prep.tokenizers.word_counts import WordCounts, count_words

STAGE = "data_prep.train_tokenizer"
_WORDS_IN_A_TEXT = 1000
_REPORT_EVERY = 20


def train_tokenizers(
    documents: Documents,
    output_dir: Path,
    *,
    kinds: Sequence[str],
    vocab_sizes: Sequence[int],
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    mask_token: bool = False,
    workers: int = 1,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Train, export and compare tokenizers in a new directory and return its manifest.

    Args:
        kinds, vocab_sizes: all pairs of them are trained; one is written into the directory itself, several into KIND-SIZE below it.
        mask_token: the last id of each is <mask>.

    Raises:
        ValueError: as `Documents`, `train_sentencepiece`, `train_byte_level` and `require_equal_ids`.
    """
    arguments_of = vars(arguments) if arguments else None
    if len(set(kinds)) < len(kinds) or len(set(vocab_sizes)) < len(vocab_sizes):
        raise ValueError(f"--model {' '.join(kinds)} --vocab-size {' '.join(map(str, vocab_sizes))} names something twice; name each once")
    # Bad input is found here, not inside the trainer.
    counts = count_words(documents, workers=workers)
    common = {
        "special_token_ids": SPECIAL_TOKEN_IDS,
        "num_documents": counts.num_documents,
        "num_empty_documents": counts.num_empty,
        "text_bytes": counts.text_bytes,
        "lost_bytes": counts.lost_bytes,
        "num_distinct_words": len(counts.words),
    }
    inputs = {str(path): digest_file(path) for path in documents.paths}
    with staged_directory(output_dir) as staging:
        made: dict[str, dict[str, Any]] = {}
        for kind in kinds:
            models = _trained(kind, counts, documents, [size - mask_token for size in vocab_sizes], byte_fallback, character_coverage)
            for size, model in zip(vocab_sizes, models.values(), strict=True):
                name = f"{kind}-{size}" if len(kinds) * len(vocab_sizes) > 1 else "."
                written = _write(staging / name, kind, model, counts, mask_token=mask_token)
                made[name] = {"model": kind, "vocab_size": size, **common, **written}
                if kind != "byte-level":
                    made[name]["byte_fallback"] = byte_fallback
                if name != ".":
                    write_manifest(staging / name, stage=STAGE, facts=made[name], arguments=arguments_of, inputs=inputs)
        facts = made.get(".", {"tokenizers": made, **common})
        return write_manifest(staging, stage=STAGE, facts=facts, arguments=arguments_of, inputs=inputs)


def _trained(
    kind: str, counts: WordCounts, documents: Documents, vocab_sizes: Sequence[int], byte_fallback: bool, character_coverage: float
) -> Mapping[int, bytes | str]:
    if kind == "byte-level":
        # Read again: the library takes text only.
        return train_byte_level(documents.read("training"), vocab_sizes)
    return train_sentencepiece(counts.words, kind, vocab_sizes, byte_fallback=byte_fallback, character_coverage=character_coverage)


def _write(directory: Path, kind: str, model: bytes | str, counts: WordCounts, *, mask_token: bool) -> dict[str, Any]:
    """Write a tokenizer, check it on all words, and return what is known of it."""
    directory.mkdir(exist_ok=True)
    if isinstance(model, bytes):
        export(model, directory, is_unigram=kind == "unigram")
        tokenizer = require_equal_ids(directory, _texts(counts) if kind == "bpe" else chain(counts.words, counts.joints))
    else:
        write_fast_tokenizer(model, SPECIAL_TOKENS, directory)
        tokenizer = load_tokenizer(directory)
        for text in (*ADVERSARIAL_TEXTS, *counts.joints):
            if tokenizer.decode(tokenizer.encode(text)) != text:
                raise AssertionError(f"the byte-level tokenizer does not give back {text!r}")
    ids = dict(SPECIAL_TOKEN_IDS)
    if mask_token:
        ids[MASK_TOKEN] = add_mask_token(directory)
        tokenizer = load_tokenizer(directory)
    return {"tokenizer_digest": tokenizer_digest(tokenizer), "special_token_ids": ids}


def _texts(counts: WordCounts) -> Iterator[str]:
    """All that stands between two spaces in the training text, in texts of 1,000 words.

    For BPE only: SentencePiece adds up the scores of a Unigram model over a whole text in 32 bits, so that two cuts of almost the same
    score may change places after some thousand words.
    """
    units = chain(counts.words, counts.joints)
    while group := list(islice(units, _WORDS_IN_A_TEXT)):
        yield " ".join(group)


def main(argv: Sequence[str] | None = None) -> int:
    """Train tokenizers into a directory, or directories, that `AutoTokenizer.from_pretrained` loads."""
    parser = command.parser(
        __doc__,
        example="python -m data_prep.train_tokenizer --input news.jsonl.gz novels.txt --vocab-size 16000 32000 80000 --output tokenizers/",
    )
    add_option(parser, "--input FILE", f"text files or folders ({SUFFIXES_IN_WORDS})", type=Path, nargs="+")
    add_corpora_argument(parser)
    add_format_arguments(parser)
    add_option(
        parser, "--vocab-size N", "vocabulary size, special tokens and bytes included; one or several", type=int, nargs="+", required=True
    )
    add_option(parser, "--model", "algorithm, one or several (default: bpe, by SentencePiece)", ["bpe"], choices=KINDS, nargs="+")
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    add_option(parser, "--byte-fallback", "encode unknown characters as bytes (256 ids) instead of <unk>", True)
    add_option(parser, "--character-coverage SHARE", "share of the characters of the text that the vocabulary covers", 0.9995)
    add_option(parser, "--mask-token", "add <mask> as the last id, for masked language modelling", False)
    command.add_running_arguments(parser, skips_bad=False)
    on_ray.add_argument(parser)
    add_option(parser, "--report DIR", "also write a report as data_prep.tokenizer_report does, on every 20th training document", type=Path)
    add_option(parser, "--compare [NAME=]DIR", "other tokenizers to include in that report", [], nargs="+")
    arguments = parser.parse_args(argv)
    command.require_positive(arguments)
    if arguments.report is None and arguments.compare:
        raise ValueError("--compare names tokenizers for a --report, which is not asked for; add --report DIR")
    others = candidates(arguments.compare)  # refused before anything is trained
    corpora = _corpora(arguments)
    paths = [path for corpus in corpora for path in corpus.paths]
    how = {"text_key": arguments.text_key, "separator": arguments.document_separator}
    if arguments.corpora is not None:
        require_text(corpora, partial(read_documents, **how, max_document_bytes=arguments.max_document_mib << 20))
    work = partial(
        train_tokenizers,
        Documents(paths, **how, max_document_bytes=arguments.max_document_mib << 20),
        arguments.output,
        kinds=arguments.model,
        vocab_sizes=arguments.vocab_size,
        byte_fallback=arguments.byte_fallback,
        character_coverage=arguments.character_coverage,
        mask_token=arguments.mask_token,
        workers=arguments.workers,
        arguments=arguments,
    )
    manifest = on_ray.share(arguments, STAGE, work)
    facts = manifest.facts
    for name, found in facts.get("tokenizers", {".": facts}).items():
        where = arguments.output if name == "." else arguments.output / name
        equal = "; ids are equal in SentencePiece and Hugging Face on every word" if found["model"] != "byte-level" else ""
        print(
            f"{where}: {found['vocab_size']:,} ids, trained on {facts['num_documents']:,} documents ({facts['text_bytes'] / 1e6:.1f} MB,"
            f" {facts['lost_bytes'] / facts['text_bytes']:.2%} of it left out){equal}"
        )
    if arguments.report is not None:
        tokenizer_report([*others, *candidates([str(arguments.output)])], corpora, arguments.report, every=_REPORT_EVERY, **how)
        command.print_report(arguments.report)
    return command.DONE


def _corpora(arguments: argparse.Namespace) -> list[Corpus]:
    if (arguments.input is None) == (arguments.corpora is None):
        raise ValueError("give either --input FILE... or --corpora YAML")
    if arguments.input is None:
        return corpora_from_table(arguments.corpora, arguments.document_separator)
    paths = text_files(arguments.input)
    require_text_files(paths, arguments.document_separator)
    return [Corpus("text", tuple(paths))]


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
