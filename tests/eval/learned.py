"""Tiny models that really learn to answer: trained for seconds on rows of our own, saved along the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

NUM_TRAINING_ROWS = 160
NUM_EVALUATED_ROWS = 60
_PLACES = ("na hribu", "ob reki", "pod goro", "sredi mesta", "v dolini")
_THINGS = ("Grad", "Mlin", "Most", "Stolp", "Samostan")
ENGLISH = [f"The old mill number {n} stands by the river and the bridge is not far." for n in range(12)]


def _row(number: int, split: str) -> dict:
    thing, place = _THINGS[number % 5], _PLACES[(number // 5) % 5]
    asked = place if number % 3 else _PLACES[(number // 5 + 1) % 5]
    question = f"Ali {thing.lower()} stoji {asked}?"
    label = asked == place
    return {"id": f"{split}:{number}", "split": split, "passage": f"{thing} {number} stoji {place}.", "question": question, "label": label}


def write_questions(folder: Path) -> Path:
    """Yes-no questions in the layout of Slovene SuperGLUE."""
    rows = [_row(n, "train") for n in range(NUM_TRAINING_ROWS)] + [_row(n + 1000, "val") for n in range(NUM_EVALUATED_ROWS)]
    path = folder / "sl" / "superglue_human" / "BoolQ.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


def solved_texts(data: Path, split: str) -> list[str]:
    """Prompts of the rows of a split with their answers."""
    from eval.protocols.protocol import documents
    from eval.protocols.slovene import PROTOCOLS

    asked = documents(PROTOCOLS["boolq"], data=str(data), split=split)
    return [f"{document['prompt']} {document['choices'][document['label']]}\n" for document in asked]


def train_tokenizer(texts: list[str], *, vocab_size: int = 500):
    """Byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials, alphabet = ["<s>", "</s>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*texts, *ENGLISH], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def train(model, tokenizer, texts: list[str], *, save_at: dict[int, Callable[[], None]], learning_rate: float, batch_size: int = 8) -> None:
    """Language modelling on whole texts, calling what is to happen at a step."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = [[1, *tokenizer(text)["input_ids"]] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    model.train()
    for step in range(max(save_at) + 1):
        if step in save_at:
            model.eval()
            save_at[step]()
            model.train()
        batch = [ids[int(i)] for i in torch.randint(len(ids), (batch_size,), generator=generator)]
        longest = max(map(len, batch))
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in batch])
        loss = model(input_ids=labels.clamp(min=0), attention_mask=(labels >= 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
