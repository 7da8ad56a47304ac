"""The tokens around a text: those that a tokenizer puts there itself, and those in front of each document of training data."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.options import add_option
from common.plain_files import read_json, write_json
from data_prep.tokenizers.files import CONFIG_NAME, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS_RULES = ("auto", "yes", "no")
# Keys of a manifest's facts: tokens in front of each document (data sets without it have none), and those that the tokenizer itself puts there.
FRONT, OWN_FRONT = "document_front", "tokenizer_front"


@dataclass(frozen=True)
class Frame:
    """Tokens that a tokenizer puts before and after a text."""

    front: tuple[int, ...]
    back: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.front) + len(self.back)


def frame_of(tokenizer: PreTrainedTokenizerFast) -> Frame:
    """What the tokenizer itself puts around a text: `<s>` and `</s>` for RoBERTa and XLM-R.

    Raises:
        ValueError: if it cuts a text otherwise when it adds them.
    """
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    for front in range(len(framed) - len(plain) + 1):
        if framed[front : front + len(plain)] == plain:
            return Frame(tuple(framed[:front]), tuple(framed[front + len(plain) :]))
    raise ValueError("the tokenizer splits a text differently when it adds special tokens; export it again with its post-processor")


def document_front(tokenizer: PreTrainedTokenizerFast, rule: str = "auto") -> tuple[int, ...]:
    """Ids that stand in front of each document of training data; the end-of-text token stands behind each.

    Args:
        rule: `auto`: what the tokenizer's post-processor puts before a text, which its model was pretrained with; nothing where that is the
            end-of-text token (OPT), since the end of the document before stands there.  `yes`: the beginning-of-text token.  `no`: nothing.

    Raises:
        ValueError: if there is no such token, or if the post-processor ends a text with another token than the end-of-text token.
    """
    eos = tokenizer.eos_token_id
    if rule == "no":
        return ()
    if rule == "yes":
        if tokenizer.bos_token_id is None or tokenizer.bos_token_id == eos:
            found = "no beginning-of-text token" if tokenizer.bos_token_id is None else f"{tokenizer.bos_token} for both ends of a text"
            raise ValueError(f"--bos yes: the tokenizer in {tokenizer.name_or_path} has {found}; set its bos_token, or choose --bos no")
        return (tokenizer.bos_token_id,)
    frame = frame_of(tokenizer)
    front = own_front(frame, eos)
    if frame.back not in ((), (eos,)) or eos in front:
        tokens = " ... ".join("".join(map(str, tokenizer.convert_ids_to_tokens(list(side)))) for side in (frame.front, frame.back))
        raise ValueError(
            f"the tokenizer in {tokenizer.name_or_path} puts {tokens} around a text, but documents end with its end-of-text token"
            f" {tokenizer.eos_token}; set eos_token to the token that it puts there, or choose --bos yes or no"
        )
    return front


def own_front(frame: Frame, eos_token_id: int | None) -> tuple[int, ...]:
    """What a frame puts in front of a document that follows another one's end of text."""
    return () if frame.front == (eos_token_id,) else frame.front


def front_facts(tokenizer: PreTrainedTokenizerFast, front: tuple[int, ...]) -> dict[str, list[str]]:
    """What a manifest says of the front of its documents, and of what the tokenizer itself puts there: the tokens by their names."""
    return {
        FRONT: list(map(str, tokenizer.convert_ids_to_tokens(list(front)))),
        OWN_FRONT: own_front_tokens(tokenizer),
    }


def own_front_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The tokens that a tokenizer itself puts in front of a document, see `own_front`."""
    front = own_front(frame_of(tokenizer), tokenizer.eos_token_id)
    return list(map(str, tokenizer.convert_ids_to_tokens(list(front))))


def front_words(tokens: Sequence[str]) -> str:
    """Tokens in front of a document, for a sentence."""
    return " ".join(tokens) or "nothing"


def front_sentence(facts: Mapping[str, Any]) -> str:
    """What stands in front of each document of a data set, by its manifest."""
    words = front_words(facts.get(FRONT, []))
    return f"{words} stands in front of each document" + (
        "" if FRONT in facts else " (by the age of the manifest, which does not record it)"
    )


def require_own_front(tokenizer: PreTrainedTokenizerFast, facts: Mapping[str, Any], *, source: str) -> None:
    """Refuse a tokenizer that begins a text otherwise than the documents that its model was trained on.

    Raises:
        ValueError: naming both.
    """
    if FRONT in facts and facts[FRONT] != (own := own_front_tokens(tokenizer)):
        raise ValueError(
            f"the model in {source} was trained on documents with {front_words(facts[FRONT])} in front, but its tokenizer puts"
            f" {front_words(own)} there; export it again with `python -m conversion.nemo_to_hf`"
        )


def set_front(folder: Path, tokens: Sequence[str]) -> None:
    """Make the tokenizer of a folder that is being written put these tokens in front of a text; untouched where it does already.

    Raises:
        ValueError: if it has no tokenizer.json, or goes on putting others there.
    """
    tokenizer = load_tokenizer(folder)
    if own_front_tokens(tokenizer) == list(tokens):
        return
    path, config_path = folder / "tokenizer.json", folder / CONFIG_NAME
    if not path.is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json, in which {front_words(tokens)} could be put in front of a text; save it so first"
        )
    content, back = read_json(path), list(map(str, tokenizer.convert_ids_to_tokens(list(frame_of(tokenizer).back))))
    names = dict.fromkeys([*tokens, *back])
    around = [[{"SpecialToken": {"id": token, "type_id": 0}} for token in side] for side in (tokens, back)]
    single, second = ([*around[0], {"Sequence": {"id": part, "type_id": 0}}, *around[1]] for part in "AB")
    ids = {token: {"id": token, "ids": [tokenizer.convert_tokens_to_ids(token)], "tokens": [token]} for token in names}
    template = {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": ids}
    before = content.get("post_processor") or {}
    steps = before.get("processors", [before])
    kept = [step for step in steps if step.get("type") == "ByteLevel"]  # which moves offsets alone
    content["post_processor"] = {"type": "Sequence", "processors": [*kept, template]} if kept else template
    write_json(path, content)
    if config_path.is_file():
        write_json(config_path, {**read_json(config_path), "add_bos_token": bool(tokens)})
    if (found := own_front_tokens(load_tokenizer(folder))) != list(tokens):
        raise ValueError(f"the tokenizer's class puts {front_words(found)} in front of a text, though {front_words(tokens)} was asked for")


def add_bos_argument(parser: argparse._ActionsContainer) -> None:
    """The option that says what stands in front of a document."""
    add_option(
        parser,
        "--bos",
        "begin each document with a beginning-of-text token (default: auto, as the tokenizer's post-processor does)",
        "auto",
        choices=BOS_RULES,
    )
