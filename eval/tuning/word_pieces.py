"""Words as a model reads them: each cut into pieces of its own, sentences that are too long cut between words, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_prep.tokenizers.frame import frame_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Passage:
    """What a model sees at once of a sentence: token ids in their frame, and where each word's first piece stands.

    Attributes:
        sentence: its number.
        first_word: number of the first word in the sentence.
    """

    sentence: int
    first_word: int
    token_ids: tuple[int, ...]
    places: tuple[int, ...]


class WordCutter:
    """Cuts sentences of words into passages of a length.

    A word is cut as it would be in running text, after a space where it is not the first, so that its pieces are known to be its own:
    no piece ever spans two words.

    Args:
        max_tokens: of a passage, with its frame.

    Attributes:
        cut_words: words so long that they alone did not fit, which lost their end.
        cut_sentences: sentences of more than one passage.

    Raises:
        ValueError: if the frame leaves no place for a word.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, max_tokens: int) -> None:
        self._tokenizer, self._frame = tokenizer, frame_of(tokenizer)
        self._room = max_tokens - len(self._frame)
        if self._room < 1:
            raise ValueError(f"passages of {max_tokens} tokens leave no room for a word between {len(self._frame)} special tokens")
        self._pieces: dict[str, tuple[int, ...]] = {}
        self.cut_words = self.cut_sentences = 0

    def passages(self, sentences: Sequence[Sequence[str]]) -> list[Passage]:
        """Of all sentences, in their order."""
        self._learn([text for words in sentences for text in _as_written(words)])
        found: list[Passage] = []
        for number, words in enumerate(sentences):
            count = len(found)
            begin, ids, places = 0, list(self._frame.front), list[int]()
            for index, text in enumerate(_as_written(words)):
                pieces = self._pieces[text]
                if len(pieces) > self._room:
                    pieces, self.cut_words = pieces[: self._room], self.cut_words + 1
                if len(ids) - len(self._frame.front) + len(pieces) > self._room:
                    found.append(self._passage(number, begin, ids, places))
                    begin, ids, places = index, list(self._frame.front), []
                places.append(len(ids))
                ids += pieces
            found.append(self._passage(number, begin, ids, places))
            self.cut_sentences += len(found) - count > 1
        return found

    def _passage(self, number: int, begin: int, ids: list[int], places: list[int]) -> Passage:
        return Passage(number, begin, (*ids, *self._frame.back), tuple(places))

    def _learn(self, texts: Sequence[str]) -> None:
        """Cut words that are new."""
        new = [text for text in dict.fromkeys(texts) if text not in self._pieces]
        if not new:
            return
        # A word that the tokenizer leaves nothing of, such as a joiner alone, is still a word to label.
        nothing = self._tokenizer.unk_token_id if self._tokenizer.unk_token_id is not None else self._tokenizer.mask_token_id
        for text, ids in zip(
            new, self._tokenizer(new, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"], strict=True
        ):
            self._pieces[text] = tuple(ids) or (nothing,)


def _as_written(words: Sequence[str]) -> list[str]:
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)]
