"""A tokenizer for the new language: SentencePiece BPE trained on text, exported as a Hugging Face fast tokenizer.

Ids are proven equal in both libraries on every line of the training text and on hostile strings before anything is
kept.  No text is changed (`identity` normalization) and, with byte fallback, none is lost: decoding gives back
what was encoded, line breaks and emoji included.  (Only a literal U+2581, SentencePiece's mark for a space, comes back as a space.)
The special tokens are GaMS's, with the ids they have in OPT: <s> 0, <pad> 1, </s> 2, <unk> 3.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from data_prep import command
from data_prep.artifacts import Manifest, digest_file, staged_directory, write_manifest
from data_prep.documents import Documents, add_input_arguments
from data_prep.sentencepiece_to_hf import export, require_equal_ids
from data_prep.tokenizer_files import start_without_torch, tokenizer_digest

# As in OPT, so that a model configuration that nobody adapted still names the right tokens.
SPECIAL_TOKEN_IDS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
# SentencePiece leaves out longer lines without an error: at its own limit of 4,192 bytes, most documents of one line.
MAX_LINE_CHARACTERS = 1 << 14
_MAX_UTF8_BYTES = 4
# SentencePiece's own marks: it leaves out lines with either.
_RESERVED = str.maketrans({"\0": " ", "\u2585": " "})


def training_lines(texts: Iterable[str], max_characters: int = MAX_LINE_CHARACTERS) -> Iterator[str]:
    """Yield all text as lines that SentencePiece does not leave out: long ones cut at a space, reserved characters blanked."""
    for text in texts:
        for line in text.translate(_RESERVED).split("\n"):
            start = 0
            while len(line) - start > max_characters:
                cut = line.rfind(" ", start + 1, start + max_characters)
                cut = cut if cut > 0 else start + max_characters
                yield line[start:cut]
                start = cut
            if start < len(line):
                yield line[start:]


def train(texts: Iterable[str], vocab_size: int, *, byte_fallback: bool = True, character_coverage: float = 0.9995) -> bytes:
    """Train a SentencePiece BPE model and return its serialised form; the same text gives the same bytes.

    Args:
        vocab_size: number of ids, with the 4 special tokens and the 256 bytes of the fallback.
        byte_fallback: spell characters outside the vocabulary as bytes; otherwise they become <unk>, and line feed and tab
            are pieces of their own.
        character_coverage: share of the text's characters, commonest first, that become pieces of their own.

    Raises:
        ValueError: if the text is too small or too rich for that vocabulary size, naming the nearest possible one.
    """
    if not 0.98 <= character_coverage <= 1:  # SentencePiece's own limits
        raise ValueError(f"--character-coverage is {character_coverage}; expected a share from 0.98 to 1")
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=training_lines(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=max(vocab_size, len(SPECIAL_TOKEN_IDS)),  # below that, its refusal names no possible size
            byte_fallback=byte_fallback,
            user_defined_symbols=[] if byte_fallback else ["\n", "\t"],
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            max_sentence_length=MAX_LINE_CHARACTERS * _MAX_UTF8_BYTES,
            num_threads=2,  # stored in the model, so it must not depend on the machine
            minloglevel=2,
            bos_piece="<s>",
            bos_id=SPECIAL_TOKEN_IDS["<s>"],
            pad_piece="<pad>",
            pad_id=SPECIAL_TOKEN_IDS["<pad>"],
            eos_piece="</s>",
            eos_id=SPECIAL_TOKEN_IDS["</s>"],
            unk_piece="<unk>",
            unk_id=SPECIAL_TOKEN_IDS["<unk>"],
        )
    except RuntimeError as error:
        raise _explained(error, vocab_size) from error
    return model.getvalue()


def _explained(error: RuntimeError, vocab_size: int) -> Exception:
    """SentencePiece's refusal of a vocabulary size as a sentence; any other error as it is."""
    if found := re.search(r"set it to a value <= (\d+)", str(error)):
        return ValueError(f"--vocab-size {vocab_size} is too large for this text; the largest possible is {found[1]}")
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
        return ValueError(
            f"--vocab-size {vocab_size} is too small for the characters of this text; the smallest possible is {found[1]},"
            " or less with a smaller --character-coverage"
        )
    return error


def train_tokenizer(
    documents: Documents,
    output_dir: Path,
    *,
    vocab_size: int,
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Train, export and compare a tokenizer in a new directory and return its manifest.

    Raises:
        ValueError: as `Documents`, `train` and `require_equal_ids`.
    """
    for _ in documents.read("reading text"):  # bad input is found here, not inside the trainer
        pass
    with staged_directory(output_dir) as staging:
        export(train(documents.read("training"), vocab_size, byte_fallback=byte_fallback, character_coverage=character_coverage), staging)
        tokenizer = require_equal_ids(staging, documents.read("comparing ids"))
        facts = {
            "tokenizer_digest": tokenizer_digest(tokenizer),
            "vocab_size": vocab_size,
            "special_token_ids": SPECIAL_TOKEN_IDS,
            "byte_fallback": byte_fallback,
            "num_documents": documents.num_documents,
            "num_empty_documents": documents.num_empty,
            "text_bytes": documents.text_bytes,
        }
        inputs = {str(path): digest_file(path) for path in documents.paths}
        return write_manifest(
            staging, stage="data_prep.train_tokenizer", facts=facts, arguments=vars(arguments) if arguments else None, inputs=inputs
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Train a tokenizer into a directory that `AutoTokenizer.from_pretrained` loads."""
    parser = command.parser(
        __doc__,
        prog="data_prep.train_tokenizer",
        example="python -m data_prep.train_tokenizer --input news.jsonl.gz novels.txt --vocab-size 32000 --output tokenizer/",
    )
    add_input_arguments(parser)
    parser.add_argument("--vocab-size", type=int, required=True, metavar="N", help="number of ids, special tokens and bytes included")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument(
        "--byte-fallback",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="spell unknown characters as bytes (256 ids) so that no text is lost; otherwise they become <unk> (default: spell)",
    )
    parser.add_argument(
        "--character-coverage",
        type=float,
        default=0.9995,
        metavar="SHARE",
        help="share of characters with ids of their own (default: 0.9995)",
    )
    arguments = parser.parse_args(argv)
    manifest = train_tokenizer(
        Documents.from_arguments(arguments),
        arguments.output,
        vocab_size=arguments.vocab_size,
        byte_fallback=arguments.byte_fallback,
        character_coverage=arguments.character_coverage,
        arguments=arguments,
    )
    facts = manifest.facts
    print(
        f"{arguments.output}: {facts['vocab_size']:,} ids, trained on {facts['num_documents']:,} documents"
        f" ({facts['text_bytes'] / 1e6:.1f} MB); ids are equal in SentencePiece and Hugging Face on every line"
    )
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
