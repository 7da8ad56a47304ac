"""Convert a SentencePiece BPE or Unigram model to a Hugging Face fast tokenizer, and check that the ids are the same.

Meant for models trained with the `identity` normalizer, a dummy prefix and kept white space.  (The default normalizer,
`nmt_nfkc`, has no exact counterpart: the `Precompiled` normalizer of `tokenizers` works on grapheme clusters.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from common.plain_files import write_json
from data_prep.reading.documents import batches
from data_prep.tokenizers.files import load_tokenizer
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS, hf_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MASK_TOKEN = "<mask>"
_BATCH_CHARACTERS = 1 << 20


def export(model_proto: bytes, directory: Path, *, is_unigram: bool = False) -> None:
    """Write `tokenizer.model` and the files from which `AutoTokenizer` loads the same tokenizer.

    No token is added to a text, and text that spells a special token is text, as in SentencePiece.
    """
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=model_proto)
    named_ids = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "pad_token": model.pad_id(), "unk_token": model.unk_id()}
    specials = {name: model.id_to_piece(i) for name, i in named_ids.items() if i >= 0}
    (directory / "tokenizer.model").write_bytes(model_proto)
    write_fast_tokenizer(hf_tokenizer(model, is_unigram=is_unigram).to_str(pretty=True), specials, directory)


def write_fast_tokenizer(backend: str, specials: Mapping[str, str], directory: Path) -> None:
    """Write the files from which `AutoTokenizer` loads a tokenizer that adds no token and takes spelled special tokens for text.

    Args:
        backend: the content of `tokenizer.json`.
        specials: role (`bos_token`) -> token.
    """
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **specials,
        "add_bos_token": False,
        "add_eos_token": False,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # decoders take no token_type_ids
    }
    (directory / "tokenizer.json").write_text(backend, encoding="utf-8")
    write_json(directory / "tokenizer_config.json", config)
    write_json(directory / "special_tokens_map.json", specials)


def add_mask_token(directory: Path) -> int:
    """Give the tokenizer in a folder one more token, <mask>, which no text is cut into; gives its id, the last."""
    from tokenizers import AddedToken, Tokenizer

    path = directory / "tokenizer.json"
    backend = Tokenizer.from_file(str(path))
    backend.add_special_tokens([AddedToken(MASK_TOKEN, special=True, normalized=False)])
    path.write_text(backend.to_str(pretty=True), encoding="utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((directory / name).read_text(encoding="utf-8"))
        write_json(directory / name, {**settings, "mask_token": MASK_TOKEN})
    token_id: int = backend.token_to_id(MASK_TOKEN)
    return token_id


def require_equal_ids(directory: Path, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Compare `tokenizer.model` with the tokenizer that `AutoTokenizer` loads from a directory, and return the latter.

    Args:
        texts: compared whole and line by line, beside `ADVERSARIAL_TEXTS`.

    Raises:
        ValueError: naming the first line (or else text) with different ids, and both lists of ids.
    """
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    tokenizer = load_tokenizer(directory)

    def ids(units: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(units)
        return model.encode(units, num_threads=len(os.sched_getaffinity(0))), [encoding.ids for encoding in encodings]

    for batch in batches(chain(ADVERSARIAL_TEXTS, texts), _BATCH_CHARACTERS):
        lines = [line for text in batch for line in text.split("\n")]
        # Both cut a text before each space, so alone a line differs from its place in a text by its first word only.
        first_words = list({line.partition(" ")[0] for line in lines})
        for units in (batch, first_words):
            expected, found = ids(units)
            if expected != found:
                raise _difference(chain(_smallest_first(lines), batch), ids)
    return tokenizer


def _smallest_first(lines: Iterable[str]) -> Iterator[str]:
    """Each line after its words, so that an error names no more than what differs."""
    for line in lines:
        yield from line.split(" ")
        yield line


def _difference(texts: Iterable[str], ids: Callable[[list[str]], tuple[list[list[int]], list[list[int]]]]) -> ValueError:
    """The error that names the first of some texts with different ids."""
    text, [expected], [found] = next((text, *both) for text in texts if (both := ids([text]))[0] != both[1])
    return ValueError(
        f"the ids of {text!r} are {expected} in SentencePiece, but {found} in the exported Hugging Face tokenizer;"
        " train again with another --vocab-size or without the text that differs"
    )
