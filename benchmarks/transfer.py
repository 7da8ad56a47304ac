"""Time and memory of every closed transfer method beside the published code, on a real model's rows, at two sizes or along a line of sizes.

`--size real`: the model's input embeddings for the source's matrices, a real tokenizer's overlap with it, the rows of a real helper for what looks at one, and for the
common space of both vocabularies (FOCUS, WECHSEL, OFA) the model's rows and their means over the pieces of each token.  `--size large`: 128,256 x 4,096 to
80,000 tokens, of which 20,000 are shared; rows beyond the model's are turned from two of its rows (mean + 0.8 a + 0.6 b, so that mean and covariance stay), columns
beyond it are products of turned columns, each as strong as the power law through the model's own singular values says.  `--targets N ...` gives the
model to so many tokens, and draws the line through what we take.  Tokens are renamed (shared ones first), so that every package sees the same overlap.

Every measurement is a process of its own: its time is from start to end, imports, reading and writing included; its memory is the largest resident set,
mapped files included.  Both sides make and write every layer that the model has: one matrix of a tied model (`--size real`), two otherwise.  Packages are asked for each of the two in turn, as the README
of FOCUS and of WECHSEL and mergekit-tokensurgeon do; what our plain code finds out about tokens serves it for both.  A package is run by the interpreter of `--peers` (docs/transfer.md says how to make
one).  Where there is none, our own plain code takes the steps of the published code, token by token.  What would take hours is done for a share of the new tokens or steps:
such lines say which share, what it took, and what all would take by it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.meter import Measured, measure
from common import command
from data_prep.tokenizers.files import start_without_torch

if TYPE_CHECKING:
    from data_prep.tokenizers.plain_tokenizer import AnyTokenizer

SPECIALS = ("<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class Size:
    num_source: int
    num_target: int
    num_shared: int
    hidden_size: int
    vector_size: int


LARGE = Size(128_256, 80_000, 20_000, 4096, 576)
OURS = (
    *("random-all", "random", "mean", "merge", "align", "focus", "focus-cse", "wechsel", "wechsel-cse", "ofa"),
    *("clp", "clp-plus", "sava", "sava-plain", "sava-procrustes", "omp"),
)

_PART_NEW = (4000, 16_000)  # new tokens of the parts that packages are given of a large case: of less, a line to all says little
_WHOLE_SIZE = 2048  # of a matrix whose case packages are given whole
_COMPARED = 1000  # rows of a result that are compared with ours: all would need both in memory
_TEXT_LINES, _LINE_WORDS = 30_000, 20  # as many as Align was published with

# Programs of others. Each has a `make(matrices)` that yields the rows of one layer after the other, and says by `share` how much of the work it did,
# and by `worked` in how many seconds; what is done once however large the share is, stays `aside`.
_BEGIN = """
import os, sys, json, time, numpy as np
work, result, parts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
load = lambda name: np.load(f"{work}/{name}.npy")
layers = json.load(open(f"{work}/layers.json"))
shared_target, shared_source, new = load("shared_target"), load("shared_source"), load("new_ids")
ids, share, aside_seconds = None, lambda: 1.0, 0.0
def aside(function, *values):
    global aside_seconds
    start = time.monotonic()
    found = function(*values)
    aside_seconds += time.monotonic() - start
    return found
def save(path, rows):
    with open(path, "wb") as file:
        np.save(file, rows)
        file.flush()
        os.fsync(file.fileno())
def worked():
    return time.monotonic() - begun - aside_seconds
"""

_END = """
begun = time.monotonic()
for layer, rows in zip(layers, make(aside(load, layer) for layer in layers)):
    if rows is not None:
        aside(save, f"{result}/peer_{layer}.npy", rows)
print(json.dumps([worked(), share()]))
if ids is not None:
    np.save(f"{result}/peer_ids.npy", ids)
"""

# A package is given two small targets of a large case, and all of it is taken from the line through both.
_PARTS = """
from transformers import PreTrainedTokenizerFast
source, took = PreTrainedTokenizerFast.from_pretrained(f"{work}/source"), {}
def make(matrices):
    for matrix in matrices:
        for part in parts:
            start = time.monotonic()
            target = PreTrainedTokenizerFast.from_pretrained(f"{work}/{part}")
            rows = transfer(source, target, matrix, np.load(f"{work}/target_vectors.npy", mmap_mode="r")[: len(target)])
            took[len(target)] = took.get(len(target), 0) + time.monotonic() - start
        yield rows
def share():
    (few, least), (many, most) = ((took[num], num) for num in (min(took), max(took)))
    num_all = len(np.load(f"{work}/target_vectors.npy", mmap_mode="r"))
    whole = many if most == least else many + (many - few) / (most - least) * (num_all - most)
    return sum(took.values()) / whole
def worked():
    return sum(took.values())
"""

_FOCUS = (
    """
def transfer(source, target, matrix, vectors):
    import torch, deepfocus.focus
    table = {target.convert_ids_to_tokens(i): vectors[i] for i in range(3, len(vectors))}
    deepfocus.focus.load_target_token_embedding = lambda **options: table
    return deepfocus.focus.FOCUS(target, source, torch.from_numpy(matrix), verbosity="silent",
                                 auxiliary_embedding_mode="fasttext-wordlevel", language_identifier="xx").numpy()
"""
    + _PARTS
)

_WECHSEL = (
    """
def transfer(source, target, matrix, vectors):
    import wechsel
    both = [v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-8) for v in (np.load(f"{work}/source_vectors.npy"), vectors)]
    both[0][:3] = 0  # special tokens have no words
    return wechsel.create_target_embeddings(*both, source, target, matrix, 10, 0.1, verbose=False)[0]
"""
    + _PARTS
)

_CLP = """
from sklearn.metrics.pairwise import cosine_similarity
helper = load("helper_vectors")
ids = new[:: 200 if np.load(f"{work}/input.npy", mmap_mode="r").shape[1] < 2048 else 2000]
share = lambda: len(ids) / len(new)
def make(matrices):
    similarities = cosine_similarity(helper[ids], helper[shared_target])
    for matrix in matrices:
        copied, rows = aside(matrix.__getitem__, shared_source), np.empty((len(ids), matrix.shape[1]))
        for n in range(len(ids)):
            weights = similarities[n] / similarities[n].sum()
            rows[n] = np.average(copied, axis=0, weights=weights)
        yield rows
"""

_OFA = """
ids = new[:2048]
share = lambda: len(ids) / len(new)
source, target = (load(f"{side}_vectors") for side in ("source", "target"))
def make(matrices):
    global source, target
    source, target = (v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-8) for v in (source, target))
    source[:3] = 0  # special tokens have no words
    found = []
    for first in range(0, len(ids), 1024):
        similarities = target[ids[first : first + 1024]] @ source.T
        for row in similarities:
            nearest = np.argsort(-row)[:10]
            weights = np.exp(row[nearest] / 0.1)
            found.append((nearest, weights / weights.sum()))
    for matrix in matrices:
        yield np.array([(matrix[nearest] * weights[:, None]).sum(axis=0) for nearest, weights in found])
"""

_MERGES = """
source_ids = json.load(open(f"{work}/source_vocabulary.json"))
target_ids, merges = json.load(open(f"{work}/target_vocabulary.json")), json.load(open(f"{work}/merges.json"))
names = {i: token for token, i in target_ids.items()}
num_merges = 1500
def merged():
    new_tokens = [names[i] for i in new]  # a list, as there
    parts = {}
    for first, second in merges[-num_merges:]:
        if first + second in new_tokens:
            parts.setdefault(first + second, []).append((first, second))
    return parts
def merge_rows(parts, matrix):
    def row(token):
        if token in source_ids:
            return matrix[source_ids[token]].astype(np.float64)
        pairs = parts.get(token) or [pair for pair in merges if pair[0] + pair[1] == token]
        return np.mean([(row(first) + row(second)) / 2 for first, second in pairs], axis=0)
    return np.array([row(names[i]) for i in sorted(target_ids[token] for token in parts)])
"""

_MERGE = (
    _MERGES
    + """
share = lambda: num_merges / len(merges)
def make(matrices):
    global ids
    parts = merged()
    ids = np.array(sorted(target_ids[token] for token in parts))
    for matrix in matrices:
        yield merge_rows(parts, matrix)
"""
)

# The published code makes all new rows by Merge, and then those again that the text has.
_ALIGN = (
    _MERGES
    + """
from tokenizers import Tokenizer
seconds = {"merge": 0.0, "align": 0.0}
def worked():
    return sum(seconds.values())
def share():
    return worked() / (seconds["merge"] * len(merges) / num_merges + seconds["align"])
def aligned():
    source, target = (Tokenizer.from_file(f"{work}/{side}/tokenizer.json") for side in ("source", "target"))
    wanted, counts = set(new.tolist()), {}
    for line in open(f"{work}/text.txt").read().splitlines():
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
    return counts
def timed(name, function, *values):
    start = time.monotonic()
    found = function(*values)
    seconds[name] += time.monotonic() - start
    return found
def align_rows(counts, matrix):
    rows = np.empty((len(counts), matrix.shape[1]))
    for n, i in enumerate(sorted(counts)):
        total = sum(counts[i].values())
        rows[n] = sum(count / total * matrix[list(key)].astype(np.float64).mean(axis=0) for key, count in counts[i].items())
    return rows
def make(matrices):
    global ids
    parts, counts = timed("merge", merged), timed("align", aligned)
    ids = np.array(sorted(counts))
    for matrix in matrices:
        timed("merge", merge_rows, parts, matrix)
        yield timed("align", align_rows, counts, matrix)
"""
)

# As the code of WECHSEL draws what it falls back to; here of the new tokens alone.
_RANDOM = """
num_target = len(np.load(f"{work}/target_vectors.npy", mmap_mode="r"))
def make(matrices):
    for matrix in matrices:
        rows = np.empty((num_target, matrix.shape[1]), np.float32)
        rows[shared_target] = matrix[shared_source]
        rows[new] = np.random.RandomState(1234).normal(np.mean(matrix, axis=0), np.std(matrix, axis=0), (len(new), matrix.shape[1]))
        yield rows
"""

_MEAN = """
import torch
from transformers import PreTrainedTokenizerFast
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
def make(matrices):
    known, pieces = source.get_vocab(), {}
    for token, i in target.get_vocab().items():
        pieces[i] = [known[token]] if token in known else [known[piece] for piece in source.tokenize(token)]
    for matrix in map(torch.from_numpy, matrices):
        rows = torch.zeros(len(target), matrix.shape[1])
        for i, of_token in pieces.items():
            rows[i] = torch.mean(matrix[of_token], axis=0)
        yield rows.numpy()
"""

# All tokens at once, the package's default, need 150 kB each beside the products.
_OMP = """
import torch
from mergekit.tokensurgeon.omp import batch_omp
ids = new[:1024]
share = lambda: len(ids) / len(new)
helper = torch.from_numpy(load("helper_vectors"))
def make(matrices):
    for matrix in matrices:
        atoms, copied = helper[shared_target], torch.from_numpy(aside(matrix.__getitem__, shared_source))
        found = [batch_omp(helper[ids[first : first + 512]], atoms, 64) for first in range(0, len(ids), 512)]
        chosen, coefficients = (torch.cat(parts) for parts in zip(*found))
        yield torch.einsum("nk,nkd->nd", coefficients, copied[chosen]).numpy()
"""

_SAVA = """
import torch
from latentis.transform import TransformSequence
from latentis.transform.base import MeanLPNorm, StandardScaling
from latentis.transform.translate import Translator
from latentis.transform.translate.aligner import SGDAffineAligner, ZeroPadding
scale = lambda: TransformSequence([StandardScaling(), MeanLPNorm(p=2)])
steps = 5 if np.load(f"{work}/input.npy", mmap_mode="r").shape[1] < 2048 else 2
share = lambda: steps / 1000
helper = torch.from_numpy(load("helper_vectors"))
def make(matrices):
    for matrix in map(torch.from_numpy, matrices):
        translator = Translator(aligner=SGDAffineAligner(num_steps=steps, lr=1e-3, random_seed=42), x_transform=scale(), y_transform=scale(),
                                dim_matcher=ZeroPadding())
        translator.fit(x=helper[shared_target], y=matrix[shared_source])
        yield None
"""

# Method -> the package that its code imports, or None for plain code that any Python with numpy, torch and scikit-learn runs.
PEERS = {
    "random": (None, _RANDOM),
    "mean": (None, _MEAN),
    "merge": (None, _MERGE),
    "align": (None, _ALIGN),
    "focus": ("deepfocus", _FOCUS),
    "wechsel": ("wechsel", _WECHSEL),
    "ofa": (None, _OFA),
    "clp": (None, _CLP),
    "sava": ("latentis", _SAVA),
    "omp": ("mergekit", _OMP),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Build the case, measure each method and each package, and print a table."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.transfer",
        example="python -m benchmarks.transfer --model smollm2/ --tokenizer slovene/ --helper helper/ --work work/",
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face folder of a real model")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="of the target, for --size real")
    parser.add_argument("--helper", type=Path, metavar="DIR", help="a model with the target's tokenizer, for --size real")
    parser.add_argument("--size", choices=("real", "large"), default="real", help="how large the case is (default: real)")
    parser.add_argument("--targets", type=int, nargs="+", default=[], metavar="N", help="sizes of target vocabularies, in place of --size")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of inputs, which are found again")
    parser.add_argument("--methods", nargs="+", choices=OURS, default=OURS, metavar="METHOD", help="which methods (default: all)")
    parser.add_argument("--peers", default="", metavar="PYTHON", help="interpreter that has the packages of others")
    parser.add_argument("--worker", metavar="METHOD", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        start_without_torch()
        _transfer(arguments.worker, arguments.work)
        return command.DONE
    if arguments.targets:
        return _line(arguments.model, arguments.targets, arguments.work, arguments.methods)
    work = arguments.work / arguments.size
    if not work.exists():
        if arguments.size == "real" and not (arguments.tokenizer and arguments.helper):
            raise ValueError("--size real needs --tokenizer and --helper; give both")
        _made(
            work,
            lambda: (
                real_rows(arguments.model, arguments.tokenizer, arguments.helper)
                if arguments.size == "real"
                else large_rows(arguments.model, LARGE)
            ),
        )
    print(f"{_case(work)}; load {os.getloadavg()[0]:.1f}")
    print(
        "| method | by | seconds | CPU s | GiB | times ours: seconds, CPU, memory | largest difference |\n|---|---|---:|---:|---:|---|---:|"
    )
    for method in arguments.methods:
        ours = _ours(method, work)
        print(f"| `{method}` | Scion | {ours.seconds:.1f} | {ours.cpu_seconds:.1f} | {ours.peak_bytes / 2**30:.2f} | | |", flush=True)
        if method in PEERS and (arguments.peers or PEERS[method][0] is None):
            try:
                line = _peer_line(method, work, ours, arguments.peers)
            except RuntimeError as error:  # a package that is not there takes nothing else along; our own code has to work
                if PEERS[method][0] is None:
                    raise
                line = f"| | {PEERS[method][0]}: {str(error).strip().splitlines()[-1]} | | | | | |"
            print(line, flush=True)
    return command.DONE


def _ours(method: str, work: Path) -> Measured:
    for left in (work / f"result_{method}").glob("ours*"):  # to write over a file has to free it first
        left.unlink()
    return measure([sys.executable, "-m", "benchmarks.transfer", "--model", work, "--work", work.resolve(), "--worker", method])


def _peer_line(method: str, work: Path, ours: Measured, peers: str) -> str:
    """Measure the published way, and how it compares."""
    package, code = PEERS[method]
    result = work / f"result_{method}"
    for left in result.glob("peer*.npy"):
        left.unlink()
    parts = [f"part_{n}" for n in _PART_NEW] if (work / f"part_{_PART_NEW[0]}").exists() else ["target"]
    peer = measure([peers if package else sys.executable, "-c", _BEGIN + code + _END, work.resolve(), result.resolve(), json.dumps(parts)])
    worked, share = json.loads(peer.output.strip().splitlines()[-1])
    whole = peer.seconds + worked * (1 / share - 1)
    many, says = whole / peer.seconds, f"{package or 'plain code'}"
    if share < 0.999:
        says += f", {share:.1%} of its work; all by that: {whole:.0f} s, {peer.cpu_seconds * many:.0f} CPU s"
    ratios = f"{whole / ours.seconds:.1f}, {peer.cpu_seconds * many / ours.cpu_seconds:.1f}, {peer.peak_bytes / ours.peak_bytes:.1f}"
    difference = _difference(result) if (result / "peer_input.npy").exists() else ""
    return f"| | {says} | {peer.seconds:.1f} | {peer.cpu_seconds:.1f} | {peer.peak_bytes / 2**30:.2f} | {ratios} | {difference} |"


def _line(model: Path, targets: Sequence[int], work: Path, methods: Sequence[str]) -> int:
    """What we take for targets of several sizes, all else the same, and the line through them."""
    print("| method | " + " | ".join(f"{n:,}: seconds, CPU, GiB" for n in targets) + " | CPU s per 10,000 tokens, and off the line by |")
    print("|---|" + "---:|" * (len(targets) + 1))
    for num in targets:
        _made(work / f"target_{num}", lambda num=num: large_rows(model, replace(LARGE, num_source=49_152, num_target=num, hidden_size=576)))  # type: ignore[misc]
    for method in methods:
        found = [_ours(method, work / f"target_{num}") for num in targets]
        each = " | ".join(f"{m.seconds:.1f}, {m.cpu_seconds:.1f}, {m.peak_bytes / 2**30:.2f}" for m in found)
        line = ""
        if len(targets) > 1:
            cpu = [m.cpu_seconds for m in found]
            slope, start = np.polyfit(targets, cpu, 1)
            off = max(abs(start + slope * num - seconds) / seconds for num, seconds in zip(targets, cpu))
            line = f"{10_000 * slope:.2f}, {off:.0%}"
        print(f"| `{method}` | {each} | {line} |", flush=True)
    return command.DONE


@dataclass(frozen=True)
class RealRows:
    """Matrices of a case: special tokens first, then the shared ones, in one order on both sides.

    Attributes:
        source: (num_source, hidden_size) the matrix.
        source_vectors, target_vectors: (num_source, vector_size), (num_target, vector_size) in a common space.
        helper: (num_target, helper_size)
        layers: of the model, all of them `source`.
    """

    num_shared: int
    source: np.ndarray
    source_vectors: np.ndarray
    target_vectors: np.ndarray
    helper: np.ndarray
    layers: tuple[str, ...] = ("input", "output")


def real_rows(model: Path, tokenizer: Path, helper: Path) -> RealRows:
    """A real model, a real tokenizer's tokens and a real helper's rows; tokens in the order that `_build` wants."""
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.spaces.helper_model import HelperModel
    from conversion.embeddings.vocabularies.vocabulary import Vocabulary
    from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
    from data_prep.tokenizers.files import load_tokenizer

    encoder, other = HelperModel.open(model), HelperModel.open(helper)
    target = Vocabulary.of(load_tokenizer(tokenizer))
    source_ids = map_vocabulary(encoder.vocabulary, target).source_ids
    means, rows = encoder.piece_means(target), other.token_vectors(target)
    known = target.is_text & means.is_known & rows.is_known
    shared, new = np.flatnonzero(known & (source_ids >= 0)), np.flatnonzero(known & (source_ids < 0))
    shared = shared[np.sort(np.unique(source_ids[shared], return_index=True)[1])]  # one target token for each source token
    rest = np.setdiff1d(np.arange(len(encoder.vocabulary)), source_ids[shared])
    source = np.concatenate([rest[: len(SPECIALS)], source_ids[shared], rest[len(SPECIALS) :]])
    chosen = np.concatenate([shared[: len(SPECIALS)], shared, new])
    matrix = encoder.input_rows[source]
    layers = ("input",) if HFCheckpoint.open(model).tie_word_embeddings else ("input", "output")
    return RealRows(len(shared), matrix, matrix, means.rows(chosen)[:], rows.rows(chosen)[:], layers)


def large_rows(model: Path, size: Size) -> RealRows:
    """Rows of a model, turned into as many, and as wide ones, as a larger one has."""
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.layers import input_matrix_name

    checkpoint = HFCheckpoint.open(model)
    rows = checkpoint.tensor(input_matrix_name(checkpoint)).float().numpy()
    generator = np.random.default_rng(0)
    first = len(SPECIALS) + size.num_shared
    mean, places = rows.mean(axis=0), generator.permutation(len(rows))

    def vectors(num: int) -> np.ndarray:
        """The model's rows in an order that says nothing, then rows that are turned from two of them."""
        known = min(num, len(rows))
        one, other = generator.integers(0, len(rows), (2, num - known))
        turned = [
            mean + 0.8 * (rows[one[i : i + 8192]] - mean) + 0.6 * (rows[other[i : i + 8192]] - mean) for i in range(0, num - known, 8192)
        ]
        return np.concatenate([rows[places[:known]], *turned]).astype(np.float32)

    both = vectors(size.num_source + size.num_target - first)
    source, target = both[: size.num_source], np.concatenate([both[:first], both[size.num_source :]])
    return RealRows(size.num_shared, _widened(source, size.hidden_size, generator), source, target, target)


def _widened(rows: np.ndarray, width: int, generator: np.random.Generator) -> np.ndarray:
    """(num_rows, width): the columns there are, and products of them, each as strong as the power law through the singular values says."""
    size = rows.shape[1]
    if width <= size:
        return rows
    values = np.sqrt(np.linalg.eigvalsh(np.cov(rows[::8].T))[::-1])
    places = np.arange(size // 8, size // 2)
    power = np.polyfit(np.log(places + 1), np.log(values[places]), 1)
    wide = np.empty((len(rows), width), dtype=np.float32)
    wide[:, :size] = rows
    centred = rows - rows.mean(axis=0)
    for start in range(size, width, size):
        stop = min(start + size, width)
        one, other = (generator.permutation(size)[: stop - start] for _ in range(2))
        product = centred[:, one] * centred[:, other]
        strength = np.exp(np.polyval(power, np.log(np.arange(start, stop) + 1)))
        wide[:, start:stop] = product / product.std(axis=0) * strength
    return wide


def _made(work: Path, rows: Callable[[], RealRows]) -> None:
    """Write a case, unless it is there."""
    if not work.exists():
        partial_folder = work.with_name(f"{work.name}.partial")
        shutil.rmtree(partial_folder, ignore_errors=True)
        partial_folder.mkdir(parents=True)
        _build(rows(), partial_folder)
        partial_folder.rename(work)


def _case(work: Path) -> str:
    matrix, target, helper = (np.load(work / f"{name}.npy", mmap_mode="r") for name in ("input", "target_vectors", "helper_vectors"))
    num_shared = len(np.load(work / "shared_target.npy", mmap_mode="r"))
    return (
        f"{matrix.shape[0]:,} x {matrix.shape[1]:,} to {len(target):,} tokens, {num_shared:,} of them shared, vectors of {target.shape[1]}, helper of {helper.shape[1]}"
        f" dimensions, {len(json.loads((work / 'layers.json').read_text()))} layers; {os.cpu_count()} cores, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}"
    )


def _build(rows: RealRows, work: Path) -> None:
    """Write matrices and vectors, and tokenizers of invented names for their tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    num_source, num_target, num_shared = len(rows.source), len(rows.target_vectors), rows.num_shared
    letters = [*"▁wst0123456789", "▁w"]  # what pieces of new tokens are made of
    shared = [*letters, *(f"▁w{i}" for i in range(num_shared - len(letters)))]
    new = ["▁t", *(f"▁t{i}" for i in range(num_target - num_shared - len(SPECIALS) - 1))]
    names = {
        "source": [*shared, *(f"▁s{i}" for i in range(num_source - num_shared - len(SPECIALS)))],
        "target": [*shared, *new],
    }
    if num_target > 2 * _PART_NEW[-1] + num_shared and rows.source.shape[1] > _WHOLE_SIZE:
        names |= {f"part_{n}": [*shared, *new[:n]] for n in _PART_NEW}
    # Every token but a letter is the one that is a digit shorter, and that digit.
    merges = [(token[:-1], token[-1]) for token in names["target"] if len(token) > 1]
    for side, tokens in names.items():
        vocabulary = {token: i for i, token in enumerate([*SPECIALS, *tokens])}
        kept = merges if side == "target" else []
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=kept, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Replace("▁", " ")
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        wrapped.save_pretrained(str(work / side))
        (work / f"{side}_vocabulary.json").write_text(json.dumps(vocabulary))

    ids = np.arange(len(SPECIALS), len(SPECIALS) + num_shared)
    for name, values in (("shared_target", ids), ("shared_source", ids), ("new_ids", np.arange(ids[-1] + 1, num_target))):
        np.save(work / f"{name}.npy", values)
    (work / "merges.json").write_text(json.dumps(merges))
    words, generator = np.array(new), np.random.default_rng(0)
    lines = (" ".join(generator.choice(words, size=_LINE_WORDS)).replace("▁", "") for _ in range(_TEXT_LINES))
    (work / "text.txt").write_text("".join(f" {line}\n" for line in lines))
    matrices = {
        "input": rows.source,
        "source_vectors": rows.source_vectors,
        "target_vectors": rows.target_vectors,
        "helper_vectors": rows.helper,
    }
    for name, matrix in matrices.items():
        np.save(work / f"{name}.npy", matrix)
    (work / "output.npy").symlink_to("input.npy")
    (work / "layers.json").write_text(json.dumps(rows.layers))


def _transfer(method: str, work: Path) -> None:
    """Our process: plan once, make the layers, write them."""
    from common.artifacts import sync_tree
    from conversion.embeddings import METHODS
    from conversion.embeddings.methods.method import TransferInputs
    from conversion.embeddings.methods.neighbors import focus_plan, wechsel_plan
    from conversion.embeddings.methods.random_rows import row_statistics
    from conversion.embeddings.methods.row_plan import INPUT_LAYER, target_matrix
    from conversion.embeddings.spaces.helper_model import HelperModel
    from conversion.embeddings.spaces.token_vectors import TokenVectors
    from conversion.embeddings.vocabularies.vocabulary import Vocabulary
    from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
    from conversion.formats.lazy_tensor import LazyTensor
    from conversion.formats.safetensors_file import write_safetensors
    from data_prep.tokenizers.plain_tokenizer import read_tokenizer

    tokenizers = [read_tokenizer(work / side) for side in ("source", "target")]
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
            for name, file, vocabulary in (("helper", "helper", target), ("encoder", "source", source))
        )
        # The published pursuit compares atoms at their own length.
        plan = METHODS[method].plan(replace(inputs, text=text, helper=helper, encoder=encoder, as_published=method == "omp"))
    result = work / f"result_{method}"
    result.mkdir(exist_ok=True)
    for name in json.loads((work / "layers.json").read_text()):
        bits = np.load(work / f"{name}.npy", mmap_mode="c").view(np.int32)  # as a checkpoint's tensors are read
        matrix = LazyTensor(name, bits.shape, "float32", lambda bits=bits: bits)  # type: ignore[misc]
        statistics = lambda matrix=matrix: row_statistics(matrix, np.arange(len(source)))  # type: ignore[misc]  # noqa: E731
        layer = INPUT_LAYER if name == "input" else name
        made = target_matrix(plan, matrix, keys=lambda: target.keys, statistics=statistics, seed=42, layer=layer)
        write_safetensors(result / f"ours_{name}.safetensors", [made])
        sync_tree(result)
        del bits, matrix, statistics, made
    np.save(result / "combined.npy", np.flatnonzero(np.diff(plan.weights.indptr)))


def _tokenize(tokenizer: AnyTokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def _difference(result: Path) -> str:
    """Largest difference between our input rows and the peer's over a sample of rows; as a share of the row's largest value above 1."""
    from conversion.formats.safetensors_file import read_safetensors

    ours, theirs = read_safetensors(result / "ours_input.safetensors")[0].read().numpy(), np.load(result / "peer_input.npy", mmap_mode="r")
    if (result / "peer_ids.npy").exists():
        ids = np.load(result / "peer_ids.npy")
        places = np.arange(0, len(ids), max(1, len(ids) // _COMPARED))
        one, other = ours[ids[places]], theirs[places]
    else:
        combined = np.load(result / "combined.npy")
        combined = combined[combined < len(theirs)]
        if not len(combined):  # rows that are drawn have nothing in common
            return ""
        places = combined[:: max(1, len(combined) // _COMPARED)]
        one, other = ours[places], theirs[places]
    shares = np.abs(one - other).max(axis=1) / np.maximum(np.abs(other).max(axis=1), 1)
    largest = f"{shares.max():.1e}"
    return largest if shares.max() < 1e-5 else f"{largest}, below 1e-5 in {(shares < 1e-5).mean():.1%} of rows"


if __name__ == "__main__":
    command.run(main)
