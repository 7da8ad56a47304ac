"""Tiny tokenizers of every spelling, and checkpoints around them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from conversion.checkpoints.hf_checkpoint import write_hf_checkpoint, write_json
from conversion.embeddings import METHODS
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from data_prep.tokenizers.files import load_tokenizer
from tests.processes import ROOT

SOURCE_SPECIALS = {"bos": "</s>", "eos": "</s>", "pad": "<pad>"}
PADDING = 7  # as OPT: 50,272 rows for 50,265 tokens
_MATERIAL = {"word_vectors": "vectors", "source_word_vectors": "source-vectors"}  # field -> flag, where they differ
LETTERS = "abcdefghijklmnoprstuvzčšž"
# A language in which every word has its one translation.
CIPHER = str.maketrans(LETTERS + LETTERS.upper(), (LETTERS[7:] + LETTERS[:7]) + (LETTERS[7:] + LETTERS[:7]).upper())
SPECIALS = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}


def demo_text(language: str) -> str:
    return (ROOT / "recipes" / "demo_text" / f"{language}.train.txt").read_text(encoding="utf-8")


def wrap(tokenizer: Tokenizer, specials: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """A transformers tokenizer with the given role -> token."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{role}_token": token for role, token in specials.items()})


def byte_level(text: str, *, num_tokens: int, specials: Mapping[str, str] | None = None) -> PreTrainedTokenizerFast:
    specials = specials or {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(dict.fromkeys(specials.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    return wrap(tokenizer, specials)


def marked_bpe(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], specials: Mapping[str, str], *, byte_fallback: bool
) -> PreTrainedTokenizerFast:
    """SentencePiece-like BPE: `▁` for a space, `<0xXX>` for bytes."""
    tokenizer = Tokenizer(
        models.BPE(vocab=dict(vocabulary), merges=list(merges), unk_token=specials.get("unk"), fuse_unk=True, byte_fallback=byte_fallback)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in dict.fromkeys(specials.values())])
    return wrap(tokenizer, specials)


def sentencepiece_like(
    text: str, *, num_tokens: int, byte_fallback: bool = True, specials: Mapping[str, str] = SPECIALS
) -> PreTrainedTokenizerFast:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=num_tokens, show_progress=False))
    description = json.loads(trained.to_str())["model"]
    pieces = [*dict.fromkeys(specials.values()), *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback)]
    pieces += [piece for piece, _ in sorted(description["vocab"].items(), key=lambda item: item[1])]
    merges = [tuple(merge) for merge in description["merges"]]
    return marked_bpe({piece: i for i, piece in enumerate(pieces)}, merges, specials, byte_fallback=byte_fallback)


def unigram(text: str, *, num_tokens: int) -> PreTrainedTokenizerFast:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = list(SPECIALS.values())
    trainer = trainers.UnigramTrainer(vocab_size=num_tokens, special_tokens=specials, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(text.splitlines(), trainer)
    scores = [tuple(entry) for entry in json.loads(trained.to_str())["model"]["vocab"]]
    scores += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=specials.index("<unk>"), byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return wrap(tokenizer, SPECIALS)


def wordpiece(text: str, *, num_tokens: int) -> PreTrainedTokenizerFast:
    specials = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=num_tokens, special_tokens=list(specials.values()), show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    return wrap(tokenizer, specials)


def permuted(tokenizer: PreTrainedTokenizerFast, new_ids: Sequence[int]) -> PreTrainedTokenizerFast:
    """The same BPE tokenizer with other ids: old id i becomes new_ids[i]."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = description["model"]["vocab"]
    description["model"]["vocab"] = {token: new_ids[i] for token, i in vocabulary.items()}
    for entry in description["added_tokens"]:
        entry["id"] = new_ids[entry["id"]]
    specials = {key.removesuffix("_token"): token for key, token in tokenizer.special_tokens_map.items()}
    return wrap(Tokenizer.from_str(json.dumps(description)), specials)


def opt_config(vocab_size: int, *, tied: bool = True, **changes: object) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": vocab_size,
        "hidden_size": 24,
        "word_embed_proj_dim": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 40,
        "max_position_embeddings": 96,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "dropout": 0.0,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    }
    return config | changes


def opt_tensors(config: Mapping[str, object], *, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors of the OPT architecture."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, ffn = sizes["hidden_size"], sizes["ffn_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (sizes["vocab_size"], hidden),
        "model.decoder.embed_positions.weight": (sizes["max_position_embeddings"] + 2, hidden),
        "model.decoder.final_layer_norm.weight": (hidden,),
        "model.decoder.final_layer_norm.bias": (hidden,),
    }
    for layer in range(sizes["num_hidden_layers"]):
        prefix = f"model.decoder.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{prefix}.self_attn.{name}.weight": (hidden, hidden), f"{prefix}.self_attn.{name}.bias": (hidden,)}
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= {f"{prefix}.{name}.weight": (hidden,), f"{prefix}.{name}.bias": (hidden,)}
        shapes |= {f"{prefix}.fc1.weight": (ffn, hidden), f"{prefix}.fc1.bias": (ffn,)}
        shapes |= {f"{prefix}.fc2.weight": (hidden, ffn), f"{prefix}.fc2.bias": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (sizes["vocab_size"], hidden)
    return {name: (torch.randn(shape, generator=generator) * 0.3 + 0.05).to(dtype) for name, shape in shapes.items()}


def save_checkpoint(
    directory: Path, config: Mapping[str, object], tensors: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast | None
) -> Path:
    directory.mkdir(parents=True)
    write_hf_checkpoint(directory, config, [LazyTensor.of(name, tensor) for name, tensor in tensors.items()])
    write_json(directory / "generation_config.json", {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "max_new_tokens": 7})
    if tokenizer is not None:
        tokenizer.save_pretrained(str(directory))
    return directory


def transfer_inputs(source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast, *, seed: int = 42, **material: Any) -> TransferInputs:
    vocabularies = Vocabulary.of(source), Vocabulary.of(target)

    def tokenize(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    ways = {"tokenize": partial(tokenize, target), "tokenize_source": partial(tokenize, source)}
    return TransferInputs(*vocabularies, map_vocabulary(*vocabularies), seed, **ways, **material)


def transfer_folders(root: Path, source: PreTrainedTokenizerFast | None = None) -> dict[str, Path]:
    """Tied and untied source models, a target tokenizer and a text, and what any method needs beside them; by the name of its flag."""
    slovene = demo_text("sl")[:30_000]
    source = source or byte_level(demo_text("en"), num_tokens=700, specials=SOURCE_SPECIALS)
    for name, tied in (("tied", True), ("untied", False)):
        config = opt_config(len(source) + PADDING, tied=tied)
        save_checkpoint(root / name, config, opt_tensors(config), source)
    sentencepiece_like(slovene, num_tokens=600).save_pretrained(str(root / "target"))
    (root / "sl.txt").write_text(slovene, encoding="utf-8")
    target = load_tokenizer(root / "target")
    for name, tokenizer, hidden in (("helper", target, 16), ("encoder", byte_level(slovene, num_tokens=500), 32)):
        config = opt_config(len(tokenizer), hidden_size=hidden, word_embed_proj_dim=hidden)
        save_checkpoint(root / name, config, opt_tensors(config), tokenizer)
    words = sorted(set(demo_text("en")[:20_000].split()) | set(slovene.split()))
    rows = np.random.default_rng(0).standard_normal((len(words), 5)).round(3)
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows)]
    for name in ("vectors", "source-vectors"):
        (root / f"{name}.vec").write_text("".join(lines), encoding="utf-8")
    (root / "dictionary.txt").write_text("".join(f"{word}\t{word}\n" for word in words), encoding="utf-8")
    pairs = [(word, word) for word in words if "\t" not in word]
    (root / "parallel.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in pairs), encoding="utf-8")
    names = ("tied", "untied", "target", "helper", "encoder", "vectors.vec", "source-vectors.vec", "dictionary.txt", "parallel.tsv")
    return {name.partition(".")[0]: root / name for name in names} | {"text": root / "sl.txt"}


def material_of(folders: Mapping[str, Path], method: str) -> dict[str, Path]:
    """The flags of what a method needs beside models and tokenizers, with their files."""
    names = [_MATERIAL.get(name, name) for name in (*METHODS[method].needs, *(first for first, _ in METHODS[method].either))]
    return {f"--{name}": folders[name] for name in names}


def transfer_arguments(folders: Mapping[str, Path], output: Path, *options: str, source: str = "tied", method: str = "mean") -> list[str]:
    """Words for `conversion.transfer`, with the material that a method needs."""
    material = [item for flag, path in material_of(folders, method).items() if flag not in options for item in (flag, path)]
    arguments = ["--source", folders[source], "--tokenizer", folders["target"], "--method", method, "--output", output, *material, *options]
    return [str(argument) for argument in arguments]
