"""How far a generated text agrees with reference texts: ROUGE-L in any script, and exact match and F1 of short answers."""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from data_prep.tokenizers.protobuf import provide_sentencepiece_messages

ROUGE_TOKENIZER_VARIABLE = "SCION_ROUGE_TOKENIZER"
_WORD = re.compile(r"\w+")
_ENGLISH_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ITALIAN_ARTICLES = re.compile(r"\b(?:il|lo|la|i|gli|le|l|un|uno|una)\b")


class Tokenizer(Protocol):
    """What cuts a text for ROUGE."""

    def tokenize(self, text: str) -> list[str]:
        """Tokens of a text."""
        ...


class Words:
    """Runs of letters and digits of any script, in lower case: for languages that put spaces between words."""

    def tokenize(self, text: str) -> list[str]:
        """Words of a text."""
        return _WORD.findall(text.lower())


def rouge_l(output: str, references: Sequence[str], tokenizer: Tokenizer) -> list[float]:
    """ROUGE-L (F1 of the longest common subsequence, Lin 2004) with each reference, 0 to 100.

    The tokenizer is never rouge_score's own: that one deletes every letter that is not ASCII.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=tokenizer)
    return [100 * scorer.score(reference, output)["rougeL"].fmeasure for reference in references]


@lru_cache(maxsize=1)
def hugging_face_tokenizer() -> Any:
    """The tokenizer that summaries are cut with, from the folder that the environment names (the paper took mT5's).

    Raises:
        ValueError: if none is named, or the folder holds none.
    """
    from transformers import AutoTokenizer

    folder = os.environ.get(ROUGE_TOKENIZER_VARIABLE)
    if not folder:
        raise ValueError(
            f"ROUGE of summaries needs a tokenizer for all scripts: give --rouge-tokenizer, or set {ROUGE_TOKENIZER_VARIABLE}"
            " to a Hugging Face folder, for example of mT5"
        )
    if not Path(folder).is_dir():
        raise ValueError(f"the tokenizer folder {folder} of ROUGE does not exist")
    provide_sentencepiece_messages()  # mT5's is published as SentencePiece's file alone
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def squad_answer(text: str) -> str:
    """As SQuAD's evaluation script (evaluate-v1.1.py) compares answers: lower case, without ASCII marks and English articles, single spaces."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(_ENGLISH_ARTICLES.sub(" ", plain).split())


def italian_answer(text: str) -> str:
    """The same idea in Italian: marks of any script become spaces, which parts an article from its noun, and Italian articles go."""
    plain = "".join(" " if unicodedata.category(letter).startswith("P") else letter for letter in text.lower())
    return " ".join(_ITALIAN_ARTICLES.sub(" ", plain).split())


def exact_match(output: str, references: Sequence[str], normalise: Callable[[str], str] = squad_answer) -> float:
    """1 if the output is one of the references after normalisation, else 0."""
    return float(normalise(output) in {normalise(reference) for reference in references})


def word_f1(output: str, references: Sequence[str], normalise: Callable[[str], str] = squad_answer) -> float:
    """Highest F1 of shared words with a reference (Rajpurkar et al. 2016), 0 to 1; of two empty answers 0, as the script has it."""
    return max(_word_f1(normalise(output).split(), normalise(reference).split()) for reference in references)


def _word_f1(output: Sequence[str], reference: Sequence[str]) -> float:
    shared = (Counter(output) & Counter(reference)).total()
    return 2 * shared / (len(output) + len(reference)) if shared else 0.0
