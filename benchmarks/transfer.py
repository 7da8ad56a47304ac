"""Time and memory of embedding transfer at the size of GaMS, against the published packages in the same run.

Source 50,272 x 2,048 float32, target 80,000 tokens of which 28,810 are shared, auxiliary vectors of 768 dimensions; the vectors are
synthetic, so that no training is timed.  Every measurement is a process of its own: its time is from start to end, imports, reading
and writing included; its memory is the largest resident set.  Ours makes input *and* output layer; the packages make one matrix.

A package is measured where the Python in SCION_PEER_PYTHON can import it (docs/transfer.md says how to make one).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_prep import command
from data_prep.tokenizer_files import start_without_torch

ROOT = Path(__file__).resolve().parent.parent
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
    "small": Size(5_000, 8_000, 2_900, 256, 96),
}
OURS = ("mean", "focus", "wechsel", "clp", "clp-plus", "sava", "omp")

# Rows of the package's result that are compared with ours: all would need both in memory.
_COMPARED_EVERY = 37

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
np.save(f"{work}/peer.npy", rows.numpy())
"""

WECHSEL = """
import sys, numpy as np
from transformers import PreTrainedTokenizerFast
import wechsel
work = sys.argv[1]
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
vectors = [np.load(f"{work}/{side}_vectors.npy") for side in ("source", "target")]
vectors = [v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-8) for v in vectors]
rows, *_ = wechsel.create_target_embeddings(*vectors, source, target, np.load(f"{work}/input.npy"), 10, 0.1, verbose=False)
np.save(f"{work}/peer.npy", rows)
"""

PEERS = {"focus": ("deepfocus", DEEPFOCUS), "wechsel": ("wechsel", WECHSEL)}


def main(argv: Sequence[str] | None = None) -> int:
    """Build the case, measure each method and each package, and print a table."""
    parser = command.parser(__doc__, prog="benchmarks.transfer", example="python -m benchmarks.transfer --size gams")
    parser.add_argument("--size", choices=SIZES, default="gams", help="how large the case is (default: gams)")
    parser.add_argument("--methods", nargs="+", choices=OURS, default=OURS, help="which methods (default: all)")
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        start_without_torch()
        _transfer(arguments.worker[0], Path(arguments.worker[1]))
        return command.DONE
    with tempfile.TemporaryDirectory(prefix="transfer-") as folder:
        work = Path(folder)
        _build(SIZES[arguments.size], work)
        print(f"{'method':<12}{'by':<12}{'seconds':>9}{'CPU s':>9}{'GiB':>7}   largest difference")
        for method in arguments.methods:
            seconds, cpu, memory = _measure([sys.executable, "-m", "benchmarks.transfer", "--worker", method, str(work)])
            print(f"{method:<12}{'Scion':<12}{seconds:>9.1f}{cpu:>9.1f}{memory:>7.2f}", flush=True)
            if method in PEERS and (python := os.environ.get("SCION_PEER_PYTHON")):
                package, code = PEERS[method]
                peer_seconds, peer_cpu, peer_memory = _measure([python, "-c", code, str(work)])
                difference = _difference(work)
                line = f"{method:<12}{package:<12}{peer_seconds:>9.1f}{peer_cpu:>9.1f}{peer_memory:>7.2f}   {difference:.1e}"
                print(f"{line}  ({peer_seconds / seconds:.1f} x the time, {peer_memory / memory:.1f} x the memory)", flush=True)
    return command.DONE


def _build(size: Size, work: Path) -> None:
    """Write tokenizers, matrices and vectors of two vocabularies whose meanings are points in one space."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    shared = [f"▁w{i}" for i in range(size.num_shared)]
    names = {
        "source": [*shared, *(f"▁s{i}" for i in range(size.num_source - size.num_shared - len(SPECIALS)))],
        "target": [*shared, *(f"▁t{i}" for i in range(size.num_target - size.num_shared - len(SPECIALS)))],
    }
    letters = [*"▁wst0123456789"]  # what pieces of new tokens are made of
    names["source"][-len(letters) :] = letters
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((400, 32)).astype(np.float32)
    axes = generator.standard_normal((32, size.vector_size)).astype(np.float32)
    meanings = centres[generator.integers(0, len(centres), size.num_source + size.num_target)]
    meanings += 0.7 * generator.standard_normal(meanings.shape).astype(np.float32)
    for side, tokens in names.items():
        vocabulary = {token: i for i, token in enumerate([*SPECIALS, *tokens])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Replace("▁", " ")
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        wrapped.save_pretrained(str(work / side))
        offset = 0 if side == "source" else size.num_source
        rows = meanings[offset : offset + len(vocabulary)].copy()
        rows[: size.num_shared] = meanings[: size.num_shared]
        vectors = rows @ axes + 0.3 * generator.standard_normal((len(rows), size.vector_size)).astype(np.float32)
        np.save(work / f"{side}_vectors.npy", vectors)
        if side == "source":
            for name in ("input", "output"):
                image = generator.standard_normal((32, size.hidden_size)).astype(np.float32)
                noise = generator.standard_normal((len(rows), size.hidden_size), dtype=np.float32)
                np.save(work / f"{name}.npy", 0.02 * (rows @ image + noise))


def _transfer(method: str, work: Path) -> None:
    """Our process: plan once, make both layers, write them."""
    import torch

    from conversion.embeddings import METHODS
    from conversion.embeddings.helper_model import HelperModel
    from conversion.embeddings.method import TransferInputs
    from conversion.embeddings.neighbor_methods import focus_plan, wechsel_plan
    from conversion.embeddings.random_rows import row_statistics
    from conversion.embeddings.row_plan import INPUT_LAYER, make_rows
    from conversion.embeddings.token_vectors import TokenVectors
    from conversion.embeddings.vocabulary import Vocabulary
    from conversion.embeddings.vocabulary_map import map_vocabulary
    from data_prep.tokenizer_files import load_tokenizer

    source, target = (Vocabulary.of(load_tokenizer(work / side)) for side in ("source", "target"))

    def vectors_of(side: str, vocabulary: Vocabulary) -> TokenVectors:
        ids = np.flatnonzero(vocabulary.is_text)
        return TokenVectors.of(np.load(work / f"{side}_vectors.npy", mmap_mode="r")[ids], ids, len(vocabulary))

    def nothing(texts: list[str]) -> list[list[int]]:
        raise AssertionError("no text is read here")

    inputs = TransferInputs(source, target, map_vocabulary(source, target), 42, nothing, nothing)
    if method == "focus":
        plan = focus_plan(inputs, vectors_of("target", target))
    elif method == "wechsel":
        plan = wechsel_plan(inputs, vectors_of("source", source), vectors_of("target", target))
    else:
        helper = HelperModel("helper", target, np.load(work / "target_vectors.npy"))
        plan = METHODS[method].plan(TransferInputs(source, target, inputs.overlap, 42, nothing, nothing, helper=helper))
    for name in ("input", "output"):
        matrix = torch.from_numpy(np.load(work / f"{name}.npy"))
        statistics = partial(row_statistics, matrix, np.arange(len(source)))
        layer = INPUT_LAYER if name == "input" else name
        rows = make_rows(plan, matrix, keys=target.keys, statistics=statistics, seed=42, layer=layer)
        np.save(work / f"ours_{name}.npy", rows.numpy())
        del matrix, statistics, rows
    np.save(work / "combined.npy", np.flatnonzero(np.diff(plan.weights.indptr)))


def _difference(work: Path) -> float:
    """Largest difference between our input rows and the package's, over a sample of the combined ones."""
    ours, theirs = (np.load(work / f"{name}.npy", mmap_mode="r") for name in ("ours_input", "peer"))
    sample = np.load(work / "combined.npy")[::_COMPARED_EVERY]
    return float(np.abs(ours[sample] - theirs[sample]).max())


# Starts a process and reports the resources of that child alone: wait4 by its id sees no other.
_METER = """
import json, os, sys, time
start = time.monotonic()
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(child, 0)
code = os.waitstatus_to_exitcode(status)
print(json.dumps([time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, code]))
"""


def _measure(arguments: Sequence[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak GiB of a process."""
    # The meter is a small process: a child of a large one would begin with its parent's peak.
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _METER, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments} could not be measured after {time.monotonic() - start:.0f} s:\n{done.stderr[-3000:]}")
    seconds, cpu, memory, code = json.loads(done.stdout.strip().splitlines()[-1])
    if code:
        raise RuntimeError(f"{arguments} ended with {code}:\n{done.stderr[-3000:]}")
    return seconds, cpu, memory


if __name__ == "__main__":
    command.run(main)
