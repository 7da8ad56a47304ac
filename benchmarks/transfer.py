"""Time and memory of embedding transfer at the size of GaMS or of a real model, against the published code in the same run.

Source 50,272 x 2,048 float32, target 80,000 tokens of which 28,810 are shared, auxiliary vectors of 768 dimensions; the vectors are
synthetic, so that no training is timed.  `--size real` takes the input embeddings of the model in SCION_REAL_MODEL for the source's matrices and for
all vectors (a new token has the vector of a source token that the target does not share), and a target of 32,000 tokens of which 12,000 are shared.  Every measurement is a process of its own: its time is from start to end, imports, reading
and writing included; its memory is the largest resident set.  Ours makes input *and* output layer; the others make one matrix.

A package is measured where the Python in SCION_PEER_PYTHON can import it (docs/transfer.md says how to make one).  Where there is no
package to install, `reference` is our own plain code that takes the same steps as the published one, token by token.  What would take
hours is done for a share of the tokens or steps, and its time multiplied; such lines say so and have no memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common import command
from common.meter import Measured, measure
from data_prep.tokenizers.files import start_without_torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIALS = ("<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class Size:
    num_source: int
    num_target: int
    num_shared: int
    hidden_size: int
    vector_size: int


SIZES = {
    "gams": Size(50_272, 80_000, 28_810, 2048, 768),
    "gams-double": Size(50_272, 160_000, 28_810, 2048, 768),  # what twice as many target tokens cost
    "small": Size(5_000, 8_000, 2_900, 256, 96),
}
_REAL_TARGET, _REAL_SHARED = 32_000, 12_000
OURS = (
    *("random-all", "random", "mean", "merge", "align", "focus", "focus-cse", "wechsel", "wechsel-cse", "ofa"),
    *("clp", "clp-plus", "sava", "sava-plain", "sava-procrustes", "omp"),
)

_COMPARED = 1000  # rows of a result that are compared with ours: all would need both in memory
_TEXT_LINES, _LINE_WORDS = 30_000, 20  # as many as Align was published with

DEEPFOCUS = """
import sys, numpy as np, torch
from transformers import PreTrainedTokenizerFast
import deepfocus.focus
work = sys.argv[1]
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
vectors = np.load(f"{work}/target_vectors.npy", mmap_mode="r")
table = {target.convert_ids_to_tokens(i): vectors[i] for i in range(3, len(vectors))}
deepfocus.focus.load_target_token_embedding = lambda **options: table
rows = deepfocus.focus.FOCUS(target, source, torch.from_numpy(np.load(f"{work}/input.npy")), verbosity="silent",
                             auxiliary_embedding_mode="fasttext-wordlevel", language_identifier="xx")
rows = rows.numpy()
"""

WECHSEL = """
import sys, numpy as np
from transformers import PreTrainedTokenizerFast
import wechsel
work = sys.argv[1]
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
vectors = [np.load(f"{work}/{side}_vectors.npy") for side in ("source", "target")]
vectors = [v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-8) for v in vectors]
vectors[0][:3] = 0  # special tokens have no words
rows, *_ = wechsel.create_target_embeddings(*vectors, source, target, np.load(f"{work}/input.npy"), 10, 0.1, verbose=False)
"""

# What every reference begins with; each prints the seconds of its work and the share of it that it did.
_PREAMBLE = """
import sys, json, time, numpy as np
work = sys.argv[1]
load = lambda name: np.load(f"{work}/{name}.npy")
shared_target, shared_source = load("shared_target"), load("shared_source")
new = load("new_ids")
"""

_CLP = """
from sklearn.metrics.pairwise import cosine_similarity
matrix, helper = load("input"), load("target_vectors")
ids = new[::200]
start = time.monotonic()
similarities = cosine_similarity(helper[ids], helper[shared_target])
copied, rows = matrix[shared_source], np.empty((len(ids), matrix.shape[1]))
for n in range(len(ids)):
    weights = similarities[n] / similarities[n].sum()
    rows[n] = np.average(copied, axis=0, weights=weights)
print(json.dumps([time.monotonic() - start, len(ids) / len(new)]))
"""

_OFA = """
matrix = load("input")
source, target = (load(f"{side}_vectors") for side in ("source", "target"))
source, target = (v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-8) for v in (source, target))
source[:3] = 0  # special tokens have no words
ids = new[:2048]
start = time.monotonic()
rows = np.empty((len(ids), matrix.shape[1]))
for first in range(0, len(ids), 1024):
    similarities = target[ids[first : first + 1024]] @ source.T
    for n, row in enumerate(similarities):
        nearest = np.argsort(-row)[:10]
        weights = np.exp(row[nearest] / 0.1)
        rows[first + n] = (matrix[nearest] * (weights / weights.sum())[:, None]).sum(axis=0)
print(json.dumps([time.monotonic() - start, len(ids) / len(new)]))
"""

_MERGE_SHARE = """
matrix, source = load("input"), json.load(open(f"{work}/source_vocabulary.json"))
target, merges = json.load(open(f"{work}/target_vocabulary.json")), json.load(open(f"{work}/merges.json"))
names = {i: token for token, i in target.items()}
new_tokens = [names[i] for i in new]  # a list, as there
share = 1500
start = time.monotonic()
parts = {}
for first, second in merges[-share:]:
    if first + second in new_tokens:
        parts.setdefault(first + second, []).append((first, second))
def row(token):
    if token in source:
        return matrix[source[token]].astype(np.float64)
    pairs = parts.get(token) or [pair for pair in merges if pair[0] + pair[1] == token]
    return np.mean([(row(first) + row(second)) / 2 for first, second in pairs], axis=0)
ids = np.array(sorted(target[token] for token in parts))
rows = np.array([row(names[i]) for i in ids])
merge_seconds, merge_share = time.monotonic() - start, share / len(merges)
"""

_MERGE = _MERGE_SHARE + "print(json.dumps([merge_seconds, merge_share]))"

# The published code makes all new rows by Merge, and then those again that the text has.
_ALIGN = (
    _MERGE_SHARE
    + """
from tokenizers import Tokenizer
source, target = (Tokenizer.from_file(f"{work}/{side}/tokenizer.json") for side in ("source", "target"))
wanted = set(new.tolist())
lines = open(f"{work}/text.txt").read().splitlines()
start = time.monotonic()
counts = {}
for line in lines:
    one, other = (tokenizer.encode(line, add_special_tokens=False) for tokenizer in (source, target))
    for token, (begin, end) in zip(other.ids, other.offsets):
        if token not in wanted:
            continue
        pieces = []
        for piece, (first, last) in zip(one.ids, one.offsets):
            if (first >= begin and last <= end) or (first <= begin and last >= end):
                pieces.append(piece)
        key = tuple(pieces)
        counts.setdefault(token, {}).setdefault(key, 0)
        counts[token][key] += 1
ids = np.array(sorted(counts))
rows = np.empty((len(ids), matrix.shape[1]))
for n, i in enumerate(ids):
    total = sum(counts[i].values())
    rows[n] = sum(count / total * matrix[list(key)].astype(np.float64).mean(axis=0) for key, count in counts[i].items())
align_seconds = time.monotonic() - start
worked = merge_seconds + align_seconds
print(json.dumps([worked, worked / (merge_seconds / merge_share + align_seconds)]))
"""
)

_MEAN = """
from tokenizers import Tokenizer
matrix = load("input")
source = Tokenizer.from_file(f"{work}/source/tokenizer.json")
names = {i: token for token, i in json.load(open(f"{work}/target_vocabulary.json")).items()}
start = time.monotonic()
ids, rows = new, np.empty((len(new), matrix.shape[1]))
for n, i in enumerate(ids):
    rows[n] = matrix[source.encode(names[i], add_special_tokens=False).ids].mean(axis=0)
print(json.dumps([time.monotonic() - start, 1.0]))
"""

_OMP = """
import torch
from mergekit.tokensurgeon.omp import batch_omp
matrix, helper = load("input"), torch.from_numpy(load("helper_vectors"))
atoms, copied = helper[shared_target], torch.from_numpy(matrix[shared_source])
ids = new[:512]  # its --batch-size; all tokens at once, its default, need some 30 GiB
start = time.monotonic()
chosen, coefficients = batch_omp(helper[ids], atoms, 64)
rows = torch.einsum("nk,nkd->nd", coefficients, copied[chosen]).numpy()
print(json.dumps([time.monotonic() - start, len(ids) / len(new)]))
"""

_SAVA = """
import torch
from latentis.transform import TransformSequence
from latentis.transform.base import MeanLPNorm, StandardScaling
from latentis.transform.translate import Translator
from latentis.transform.translate.aligner import SGDAffineAligner, ZeroPadding
matrix, helper = (torch.from_numpy(load(name)) for name in ("input", "target_vectors"))
scale = lambda: TransformSequence([StandardScaling(), MeanLPNorm(p=2)])
steps = 5
translator = Translator(aligner=SGDAffineAligner(num_steps=steps, lr=1e-3, random_seed=42), x_transform=scale(), y_transform=scale(),
                        dim_matcher=ZeroPadding())
start = time.monotonic()
translator.fit(x=helper[shared_target], y=matrix[shared_source])
ids = rows = None
print(json.dumps([time.monotonic() - start, steps / 1000]))
"""

_SAVE = """
if globals().get("ids") is not None:
    np.save(f"{work}/peer_ids.npy", ids)
if rows is not None:
    np.save(f"{work}/peer.npy", rows)
"""

# Method -> the package that its code imports, or None for plain code that any Python with numpy, torch and scikit-learn runs.
PEERS = {
    "mean": (None, _MEAN),
    "merge": (None, _MERGE),
    "align": (None, _ALIGN),
    "focus": ("deepfocus", DEEPFOCUS),
    "wechsel": ("wechsel", WECHSEL),
    "ofa": (None, _OFA),
    "clp": (None, _CLP),
    "sava": ("latentis", _SAVA),
    "omp": ("mergekit", _OMP),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Build the case, measure each method and each package, and print a table."""
    parser = command.parser(__doc__, prog="benchmarks.transfer", example="python -m benchmarks.transfer --size gams")
    parser.add_argument("--size", choices=(*SIZES, "real"), default="gams", help="how large the case is (default: gams)")
    parser.add_argument("--methods", nargs="+", choices=OURS, default=OURS, metavar="METHOD", help="which methods (default: all)")
    parser.add_argument("--without-peers", action="store_true", help="measure this project alone")
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        start_without_torch()
        _transfer(arguments.worker[0], Path(arguments.worker[1]))
        return command.DONE
    with tempfile.TemporaryDirectory(prefix="transfer-") as folder:
        work = Path(folder)
        rows = _real_rows() if arguments.size == "real" else None
        size = SIZES[arguments.size] if rows is None else Size(len(rows), _REAL_TARGET, _REAL_SHARED, rows.shape[1], rows.shape[1])
        _build(size, work, rows)
        print(f"{'method':<12}{'by':<12}{'seconds':>9}{'CPU s':>9}{'GiB':>7}   largest difference")
        for method in arguments.methods:
            ours = measure([sys.executable, "-m", "benchmarks.transfer", "--worker", method, str(work)])
            print(f"{method:<12}{'Scion':<12}{ours.seconds:>9.1f}{ours.cpu_seconds:>9.1f}{ours.peak_bytes / 2**30:>7.2f}", flush=True)
            if method in PEERS and not arguments.without_peers:
                _measure_peer(method, work, ours)
    return command.DONE


def _measure_peer(method: str, work: Path, ours: Measured) -> None:
    """Measure the published way and print how it compares."""
    package, code = PEERS[method]
    python = os.environ.get("SCION_PEER_PYTHON") if package else sys.executable
    if not python:
        return
    for name in ("peer.npy", "peer_ids.npy"):
        (work / name).unlink(missing_ok=True)
    whole = method in ("focus", "wechsel")  # their code begins and ends by itself
    peer = measure([python, "-c", code + _SAVE if whole else _PREAMBLE + code + _SAVE, str(work)])
    seconds, cpu, share = peer.seconds, peer.cpu_seconds, 1.0
    if not whole:
        worked, share = json.loads(peer.output.strip().splitlines()[-1])
        seconds += worked * (1 / share - 1)
        cpu *= seconds / peer.seconds
    memory = f"{peer.peak_bytes / 2**30:>7.2f}" if share == 1 else f"{'':>7}"
    line = f"{method:<12}{package or 'reference':<12}{seconds:>9.1f}{cpu:>9.1f}{memory}   "
    line += f"{_difference(work)}  " if (work / "peer.npy").exists() else ""
    line += f"({seconds / ours.seconds:.1f} x the time, {cpu / ours.cpu_seconds:.1f} x the CPU seconds"
    line += f", {peer.peak_bytes / ours.peak_bytes:.1f} x the memory)" if share == 1 else f"; measured on {share:.2%} of its work)"
    print(line, flush=True)


def _real_rows() -> np.ndarray:
    """The input embeddings of the real model in float32, in an order that says nothing."""
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.layers import input_matrix_name

    if not (model := os.environ.get("SCION_REAL_MODEL")):
        raise ValueError("SCION_REAL_MODEL names no folder; set it to that of a Hugging Face model, or choose another --size")
    checkpoint = HFCheckpoint.open(Path(model))
    rows = checkpoint.tensor(input_matrix_name(checkpoint)).float().numpy()
    if len(rows) < _REAL_TARGET + len(SPECIALS):
        raise ValueError(f"{model} has {len(rows)} token rows; expected at least {_REAL_TARGET + len(SPECIALS)}")
    return rows[np.random.default_rng(0).permutation(len(rows))]


def _build(size: Size, work: Path, real: np.ndarray | None = None) -> None:
    """Write tokenizers, matrices and vectors of two vocabularies whose meanings are points in one space, or rows of a real model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    letters = [*"▁wst0123456789", "▁w"]  # what pieces of new tokens are made of
    shared = [*letters, *(f"▁w{i}" for i in range(size.num_shared - len(letters)))]
    new = ["▁t", *(f"▁t{i}" for i in range(size.num_target - size.num_shared - len(SPECIALS) - 1))]
    names = {
        "source": [*shared, *(f"▁s{i}" for i in range(size.num_source - size.num_shared - len(SPECIALS)))],
        "target": [*shared, *new],
    }
    # Every token but a letter is the one that is a digit shorter, and that digit.
    merges = [(token[:-1], token[-1]) for token in names["target"] if len(token) > 1]
    generator = np.random.default_rng(0)
    if real is None:
        _write_made_rows(size, work, generator)
    else:
        _write_real_rows(size, work, real)
    for side, tokens in names.items():
        vocabulary = {token: i for i, token in enumerate([*SPECIALS, *tokens])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges if side == "target" else [], unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Replace("▁", " ")
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        wrapped.save_pretrained(str(work / side))
        (work / f"{side}_vocabulary.json").write_text(json.dumps(vocabulary))

    ids = np.arange(len(SPECIALS), len(SPECIALS) + size.num_shared)
    for name, values in (("shared_target", ids), ("shared_source", ids), ("new_ids", np.arange(ids[-1] + 1, size.num_target))):
        np.save(work / f"{name}.npy", values)
    (work / "merges.json").write_text(json.dumps(merges))
    words = np.array(new)
    lines = (" ".join(generator.choice(words, size=_LINE_WORDS)).replace("▁", "") for _ in range(_TEXT_LINES))
    (work / "text.txt").write_text("".join(f" {line}\n" for line in lines))


def _write_made_rows(size: Size, work: Path, generator: np.random.Generator) -> None:
    """Vectors of clusters in 32 dimensions with noise, and matrices that are images of them."""
    centres = generator.standard_normal((400, 32)).astype(np.float32)
    axes = generator.standard_normal((32, size.vector_size)).astype(np.float32)
    meanings = centres[generator.integers(0, len(centres), size.num_source + size.num_target)]
    meanings += 0.7 * generator.standard_normal(meanings.shape).astype(np.float32)
    for side, num_tokens in (("source", size.num_source), ("target", size.num_target)):
        offset = 0 if side == "source" else size.num_source
        rows = meanings[offset : offset + num_tokens].copy()
        first = len(SPECIALS)
        rows[first : first + size.num_shared] = meanings[first : first + size.num_shared]
        vectors = rows @ axes + 0.3 * generator.standard_normal((len(rows), size.vector_size)).astype(np.float32)
        np.save(work / f"{side}_vectors.npy", vectors)
        if side == "target":
            # The rows of a pretrained encoder are not of 32 dimensions: here half of their squared length is beyond them.
            beyond = generator.standard_normal(vectors.shape, dtype=np.float32) * vectors.std()
            np.save(work / "helper_vectors.npy", vectors + beyond)
        if side == "source":
            for name in ("input", "output"):
                image = generator.standard_normal((32, size.hidden_size)).astype(np.float32)
                noise = generator.standard_normal((len(rows), size.hidden_size), dtype=np.float32)
                np.save(work / f"{name}.npy", 0.02 * (rows @ image + noise))


def _write_real_rows(size: Size, work: Path, real: np.ndarray) -> None:
    """The model's rows as matrices and as vectors; new tokens have those of source tokens that are not shared."""
    for name in ("input", "output", "source_vectors"):
        np.save(work / f"{name}.npy", real)
    for name in ("target_vectors", "helper_vectors"):
        np.save(work / f"{name}.npy", real[: size.num_target])


def _transfer(method: str, work: Path) -> None:
    """Our process: plan once, make both layers, write them."""
    import torch

    from conversion.embeddings import METHODS
    from conversion.embeddings.methods.method import TransferInputs
    from conversion.embeddings.methods.neighbors import focus_plan, wechsel_plan
    from conversion.embeddings.methods.random_rows import row_statistics
    from conversion.embeddings.methods.row_plan import INPUT_LAYER, row_blocks
    from conversion.embeddings.spaces.helper_model import HelperModel
    from conversion.embeddings.spaces.token_vectors import TokenVectors
    from conversion.embeddings.vocabularies.vocabulary import Vocabulary
    from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
    from conversion.formats.lazy_tensor import LazyTensor
    from conversion.formats.safetensors_file import write_safetensors
    from data_prep.tokenizers.files import load_tokenizer

    tokenizers = [load_tokenizer(work / side) for side in ("source", "target")]
    source, target = map(Vocabulary.of, tokenizers)

    def vectors_of(side: str, vocabulary: Vocabulary) -> TokenVectors:
        index = np.where(vocabulary.is_text, np.arange(len(vocabulary)), -1)
        return TokenVectors(np.load(work / f"{side}_vectors.npy", mmap_mode="r"), index)

    tokenize_source, tokenize = (partial(_tokenize, tokenizer) for tokenizer in tokenizers)
    inputs = TransferInputs(source, target, map_vocabulary(source, target), 42, tokenize, tokenize_source)
    if method == "focus":
        plan = focus_plan(inputs, vectors_of("target", target))
    elif method in ("wechsel", "ofa"):
        plan = wechsel_plan(inputs, vectors_of("source", source), vectors_of("target", target))
    else:
        text = (work / "text.txt").read_text().splitlines() if method == "align" else None
        helper, encoder = (
            HelperModel(name, vocabulary, np.load(work / f"{file}_vectors.npy", mmap_mode="r"))
            for name, file, vocabulary in (
                ("helper", "helper" if method == "omp" else "target", target),
                ("encoder", "source", source),
            )
        )
        # The published pursuit compares atoms at their own length.
        plan = METHODS[method].plan(replace(inputs, text=text, helper=helper, encoder=encoder, as_published=method == "omp"))
    for name in ("input", "output"):
        matrix = torch.from_numpy(np.load(work / f"{name}.npy", mmap_mode="c"))  # as a checkpoint's tensors are read
        statistics = partial(row_statistics, matrix, np.arange(len(source)))
        layer = INPUT_LAYER if name == "input" else name
        blocks = partial(row_blocks, plan, matrix, keys=target.keys, statistics=statistics, seed=42, layer=layer)
        shape = (len(target), matrix.shape[1])
        write_safetensors(work / f"ours_{name}.safetensors", [LazyTensor.of_blocks(name, shape, matrix.dtype, blocks)])
        del matrix, statistics, blocks
    np.save(work / "combined.npy", np.flatnonzero(np.diff(plan.weights.indptr)))


def _tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def _difference(work: Path) -> str:
    """Largest difference between our input rows and the peer's over a sample of rows; as a share of the row's largest value above 1."""
    from conversion.formats.safetensors_file import read_safetensors

    ours, theirs = read_safetensors(work / "ours_input.safetensors")[0].read().numpy(), np.load(work / "peer.npy", mmap_mode="r")
    if (work / "peer_ids.npy").exists():
        ids = np.load(work / "peer_ids.npy")
        places = np.arange(0, len(ids), max(1, len(ids) // _COMPARED))
        one, other = ours[ids[places]], theirs[places]
    else:
        combined = np.load(work / "combined.npy")
        places = combined[:: max(1, len(combined) // _COMPARED)]
        one, other = ours[places], theirs[places]
    shares = np.abs(one - other).max(axis=1) / np.maximum(np.abs(other).max(axis=1), 1)
    largest = f"{shares.max():.1e}"
    return largest if shares.max() < 1e-5 else f"{largest}, below 1e-5 in {(shares < 1e-5).mean():.1%} of rows"


if __name__ == "__main__":
    command.run(main)
