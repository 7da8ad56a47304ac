"""What the study on a real model reads: text and held-out text, tokenizers, a helper; each is made once and found again."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.commands import require_same_settings
from benchmarks.real_model.training import WAYS, training_rows
from common.artifacts import staged_directory
from common.plain_files import read_json, write_json
from common.progress import Progress
from conversion.checkpoints.hf_model import Checkpoint, inspect_checkpoint, load_model
from conversion.comparing.comparison import TextScorer, TrainingOptions, pack, training_steps
from conversion.comparing.decision import spread_order
from conversion.embeddings.case import TransferCase, read_case
from conversion.embeddings.parallel_text import ParallelText
from conversion.embeddings.request import TransferRequest
from conversion.embeddings.settings import VocabularyOptions
from data_prep.reading.documents import Documents
from data_prep.reading.named_texts import Text
from data_prep.tokenizers.files import load_tokenizer
from data_prep.tokenizers.plain_tokenizer import by_transformers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent.parent
DICTIONARIES = {"sl": "muse_nc.en-sl.txt.gz", "it": "muse_nc.en-it.txt.gz", "hr": "muse_nc.en-hr.txt.gz"}
ENGLISH, NOVELS = "en", "novels"  # names of held-out texts beside that of the language, which is news

_HELDOUT_EVERY = 12  # novels
_PIECE_CHARACTERS, _NOVEL_CHARACTERS = 3000, 1500
_HELPER = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
HELPER_STEPS = 200  # unless more are asked for
_HELPER_TRAINING = TrainingOptions(HELPER_STEPS, 2e-3, batch_size=8, sequence_length=128, mixed_precision=True)
_HELPER_OF_EXPANDED = 16_000  # tokens of the vocabulary whose helper serves an expanded one, which has most of them


@dataclass(frozen=True)
class Sizes:
    """Bytes of text, each a beginning of the next larger one.

    Attributes:
        methods: that the methods learn from, and a helper of few steps.
        tokenizer: that tokenizers are trained on.
        training: that models are trained on, and a helper of more steps; begun again where it ends.
        heldout: news in the target language; English and novels half as much each.
    """

    methods: int = 4_000_000
    tokenizer: int = 12_000_000
    training: int = 20_000_000
    heldout: int = 24_000


class Study:
    """Where things lie, and how to make each that is not there yet."""

    def __init__(
        self,
        source: Path,
        data: Path,
        output: Path,
        sizes: Sizes,
        *,
        device: str = "cpu",
        compiled: bool = False,
        precision: str = "bfloat16",
    ) -> None:
        self.source, self.data, self.output, self.sizes = source, data, output, sizes
        self.device, self.compiled, self.precision = device, compiled, precision
        self._cases = cache(self._case)
        self.heldout = cache(self._heldout)
        self.scorer = cache(self._scorer)
        self.training_rows = cache(self._training_rows)
        self.alone = RLock()  # of a thread that does what others may not do beside it: make material, record, score
        self.bytes_per_token = cache(self._bytes_per_token)

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Refuse to put cells beside others that were made with other settings."""
        require_same_settings(self.output, settings)

    def text(self, language: str, num_bytes: int) -> Path:
        """About so many bytes of all the language's corpora but the held-out novels, in an order that says nothing."""
        path = self.output / "text" / f"{language}.{num_bytes}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            documents = list(_paragraphs(self.data / "text" / language))
            random.Random(0).shuffle(documents)
            wanted, kept = num_bytes, []
            for document in documents:
                if wanted <= 0:
                    break
                kept.append(json.dumps({"text": document}, ensure_ascii=False) + "\n")
                wanted -= len(document.encode())
            partial = path.with_suffix(".partial")
            partial.write_text("".join(kept), encoding="utf-8")
            partial.rename(path)
        return path

    def _training_rows(self, language: str, vocabulary: str | None, way: str, seed: int, num_rows: int, length: int) -> Tensor:
        """What models are trained on: (num_rows, length) token ids."""
        target, english = (
            list(Documents([self.text(name, self.sizes.training)], text_key="text")) if wanted else []
            for name, wanted in ((language, True), (ENGLISH, WAYS[way].english > 0))
        )
        tokenizer = self.tokenizer_of(language, vocabulary)
        return training_rows(tokenizer, target, english, WAYS[way], num_rows=num_rows, length=length, seed=seed)

    def _heldout(self, language: str) -> list[Text]:
        """Stories of NTREX, half as many bytes of the same in English, and of novels that are in no other text, where there are any."""
        stories: dict[str, list[tuple[str, str]]] = {}
        with gzip.open(self.data / "parallel/ntrex128.tsv.gz", "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                stories.setdefault(row["doc"], []).append((row[language], row[ENGLISH]))
        news, english = (["\n".join(line[side] for line in story) for story in stories.values()] for side in (0, 1))
        half = self.sizes.heldout // 2
        texts = [Text(language, Path("ntrex"), _some(news, self.sizes.heldout), ""), Text(ENGLISH, Path("ntrex"), _some(english, half), "")]
        if novels := list(_heldout_novels(self.data / "text" / language)):
            texts.append(Text(NOVELS, Path("novels"), _some(novels, half), ""))
        return texts

    def tokenizer(self, language: str, size: int) -> Path:
        """A SentencePiece BPE tokenizer of the language."""
        folder = self.output / f"tokenizer_{language}_{size}"
        if not folder.exists():
            text = self.text(language, self.sizes.tokenizer)
            words = ["-m", "data_prep.train_tokenizer", "--input", text, "--vocab-size", size, "--output", folder]
            print(f"   python {shlex.join(map(str, words))}", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True)
        return folder

    def helper(self, language: str, size: int, steps: int = HELPER_STEPS) -> Path:
        """A toy that was trained a little on the methods' text: what can be had where there is no model of the language.

        Args:
            steps: of its training; of more than HELPER_STEPS the text is that which models are trained on.
        """
        few = steps <= HELPER_STEPS
        folder = self.output / (f"helper_{language}_{size}" + ("" if few else f"_{steps}"))
        if not folder.exists():
            tokenizer = load_tokenizer(self.tokenizer(language, size))
            torch.manual_seed(1)
            config = LlamaConfig(**_HELPER, vocab_size=len(tokenizer), tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id)
            documents = list(Documents([self.text(language, self.sizes.methods if few else self.sizes.training)], text_key="text"))
            how = replace(_HELPER_TRAINING, mixed_precision=self.precision == "bfloat16")
            if not few:
                how = replace(how, num_steps=steps)
            model, rows = LlamaForCausalLM(config).to(self.device), pack(tokenizer, documents, how)
            with Progress(f"{folder.name}: training", total=how.num_steps, unit="steps") as progress:
                for _ in training_steps(model, rows, how, seed=1):
                    progress.advance()
            with staged_directory(folder) as staging:
                model.eval().save_pretrained(staging)
                tokenizer.save_pretrained(staging)
        return folder

    def request(self, language: str, vocabulary: str, helper_steps: int = HELPER_STEPS) -> TransferRequest:
        """Everything that the methods may read; the source itself is the encoder of both languages."""
        kind, _, number = vocabulary.partition("-")
        size = int(number)
        return TransferRequest(
            self.source,
            self.tokenizer(language, size) if kind == "replace" else None,
            "mean",
            VocabularyOptions(kind, size if kind == "expand" else None),
            text=Documents([self.text(language, self.sizes.methods)], text_key="text"),
            source_text=Documents([self.text(ENGLISH, self.sizes.methods)], text_key="text"),
            dictionary=self.data / "dictionaries" / DICTIONARIES[language],
            parallel=ParallelText(self.data / "parallel" / f"gnome_help.en-{language}.tsv.gz", (ENGLISH, language)),
            helper=self.helper(language, size if kind == "replace" else _HELPER_OF_EXPANDED, helper_steps),
            encoder=self.source,
        )

    def case(self, language: str, vocabulary: str, helper_steps: int = HELPER_STEPS) -> TransferCase:
        """Model, tokenizers and material, read once for all methods."""
        return self._cases(language, vocabulary, helper_steps)

    def _case(self, language: str, vocabulary: str, helper_steps: int) -> TransferCase:
        return read_case(self.request(language, vocabulary, helper_steps))

    def tokenizer_of(self, language: str, vocabulary: str | None) -> PreTrainedTokenizerFast:
        """That of a vocabulary, or the source's own where there is none."""
        return self.checkpoint.tokenizer if vocabulary is None else by_transformers(self.case(language, vocabulary).target.tokenizer)

    def _scorer(self, language: str, vocabulary: str | None) -> TextScorer:
        """Each text is encoded once for all methods."""
        return TextScorer(self.tokenizer_of(language, vocabulary))

    def _bytes_per_token(self, language: str, vocabulary: str | None) -> float:
        """Of training text, in a sample; kept, as it takes the tokenizer to know it."""
        path = self.output / "bytes_per_token" / f"{language}.{vocabulary or 'own'}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sample = list(Documents([self.text(language, self.sizes.methods)], text_key="text"))[:200]
            encoded = self.tokenizer_of(language, vocabulary).backend_tokenizer.encode_batch(sample, add_special_tokens=False)
            write_json(path, sum(len(text.encode()) for text in sample) / sum(len(one.ids) for one in encoded))
        return float(read_json(path))

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The source."""
        return inspect_checkpoint(self.source, name="source")

    @cached_property
    def scored_model(self) -> PreTrainedModel:
        """The source in the precision of products, whose body every scored model shares before training."""
        return load_model(self.checkpoint, device=self.device, dtype=self.precision)


def _some(texts: Sequence[str], num_bytes: int) -> list[str]:
    """Whole texts from all over them, about so many bytes."""
    kept: list[str] = []
    for place in spread_order(len(texts)):
        if sum(len(text.encode()) for text in kept) >= num_bytes:
            break
        kept.append(texts[place])
    return kept


def _paragraphs(folder: Path) -> Iterator[str]:
    """Documents of a language in pieces of whole paragraphs, of corpora that anyone may use, without the held-out novels."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        if "_nc" not in path.name:
            for number, text in _documents(path):
                if not _is_heldout(path, number):
                    yield from _pieces(text, _PIECE_CHARACTERS)


def _heldout_novels(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("eltec_novels.jsonl.gz")):
        for number, text in _documents(path):
            if _is_heldout(path, number):
                yield from (piece for piece in _pieces(text, _NOVEL_CHARACTERS) if len(piece) > _NOVEL_CHARACTERS)


def _is_heldout(path: Path, group: int) -> bool:
    return path.name.startswith("eltec_novels") and group % _HELDOUT_EVERY == 0


def _documents(path: Path) -> Iterator[tuple[int, str]]:
    """Number of the group (a novel, a story) and text of each document."""
    groups: dict[str, int] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for document in map(json.loads, lines):
            yield groups.setdefault(document["group"], len(groups)), document["text"]


def _pieces(text: str, characters: int) -> Iterator[str]:
    """Runs of whole paragraphs, each but the last of more than so many characters."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        if len(piece) > characters:
            yield piece
            piece = ""
    if piece:
        yield piece
