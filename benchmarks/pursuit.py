"""Matching pursuit on the rows of a real model, beside mergekit's, in turns in one run.

    SCION_REAL_MODEL=smollm2/ SCION_PEER_PYTHON=... python -m benchmarks.pursuit --tokens 512 2048 8192

The model's input embeddings stand for a helper's: some rows, drawn once, are the shared tokens, others are new.  Both sides look for 64 shared
tokens for each new one, compared at their own length as published.  Every measurement is a process of its own, from its start to the last byte of
its coefficients on disk, imports and the reading of the rows included; the CPU seconds of the function alone stand beside it.  One thread each.  The
peer is given its tokens `--peer-batch` at a time (by default it takes all at once, which needs 150 kB a token beside the products).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.transfer import Measured, measure
from common import command

_OURS = """
import sys, time, numpy as np, torch
torch.set_num_threads(1)
from conversion.embeddings.methods.matching_pursuit import pursuit_weights
work, num = sys.argv[1], int(sys.argv[2])
atoms, new = np.load(f"{work}/atoms.npy"), np.load(f"{work}/new.npy", mmap_mode="r")[:num]
start = time.process_time()
weights = pursuit_weights(new, atoms, num_atoms=64, long_first=True)
print(time.process_time() - start)
np.savez(f"{work}/ours.npz", indices=weights.indices, data=weights.data, indptr=weights.indptr)
"""

_PEER = """
import sys, time, numpy as np, torch
torch.set_num_threads(1)
from mergekit.tokensurgeon.omp import batch_omp
work, num, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
atoms, new = (torch.from_numpy(np.load(f"{work}/{name}.npy", mmap_mode="c")) for name in ("atoms", "new"))
start = time.process_time()
found = [batch_omp(new[first : first + batch], atoms, 64) for first in range(0, num, batch)]
print(time.process_time() - start)
chosen, coefficients = (torch.cat(parts).numpy() for parts in zip(*found))
np.savez(f"{work}/peer.npz", chosen=chosen, coefficients=coefficients)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both and print a table."""
    parser = command.parser(__doc__, prog="benchmarks.pursuit", example="python -m benchmarks.pursuit --tokens 512 2048")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048], metavar="N", help="new tokens (default: 512 2048)")
    parser.add_argument("--atoms", type=int, default=10_000, metavar="N", help="shared tokens (default: 10000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of which medians are printed (default: 3)")
    parser.add_argument("--peer-batch", type=int, default=512, metavar="N", help="tokens that the peer does at once (default: 512)")
    parser.add_argument("--peer-most", type=int, metavar="N", help="measure the peer for no more tokens than this")
    arguments = parser.parse_args(argv)
    model, python = os.environ.get("SCION_REAL_MODEL"), os.environ.get("SCION_PEER_PYTHON")
    if model is None:
        raise ValueError("SCION_REAL_MODEL names no folder; set it to that of a Hugging Face model")
    with tempfile.TemporaryDirectory(prefix="pursuit-") as folder:
        work = Path(folder)
        _write_rows(Path(model), work, num_atoms=arguments.atoms, num_new=max(arguments.tokens))
        print(f"{'tokens':>7} {'by':<9}{'CPU s':>8}{'of it the function':>20}{'seconds':>9}{'GiB':>7}   all rounds' CPU s", flush=True)
        for num in arguments.tokens:
            sides = {"Scion": [sys.executable, "-c", _OURS, folder, str(num)]}
            if python and num <= (arguments.peer_most or num):
                sides["mergekit"] = [python, "-c", _PEER, folder, str(num), str(arguments.peer_batch)]
            found: dict[str, list[Measured]] = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, words in sides.items():
                    found[side].append(measure(words))
            for side, rounds in found.items():
                _print(num, side, rounds)
            if "mergekit" in found:
                _compare(found["Scion"], found["mergekit"], work, num)
    return command.DONE


def _write_rows(model: Path, work: Path, *, num_atoms: int, num_new: int) -> None:
    import numpy as np

    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.layers import input_matrix_name

    checkpoint = HFCheckpoint.open(model)
    rows = checkpoint.tensor(input_matrix_name(checkpoint)).float().numpy()
    if num_atoms + num_new > len(rows):
        raise ValueError(f"{model} has {len(rows)} rows; expected at least {num_atoms} shared and {num_new} new ones; ask for fewer")
    order = np.random.default_rng(0).permutation(len(rows))
    np.save(work / "atoms.npy", rows[order[:num_atoms]])
    np.save(work / "new.npy", rows[order[num_atoms : num_atoms + num_new]])


def _medians(rounds: Sequence[Measured]) -> tuple[float, float, float, float]:
    """CPU seconds, those of the function, seconds, GiB."""
    return (
        median(m.cpu_seconds for m in rounds),
        median(float(m.output.splitlines()[-1]) for m in rounds),
        median(m.seconds for m in rounds),
        median(m.memory_gib for m in rounds),
    )


def _print(num: int, side: str, rounds: Sequence[Measured]) -> None:
    cpu, function, wall, memory = _medians(rounds)
    each = " ".join(f"{m.cpu_seconds:.1f}" for m in rounds)
    print(f"{num:>7} {side:<9}{cpu:>8.1f}{function:>20.1f}{wall:>9.1f}{memory:>7.2f}   {each}", flush=True)


def _compare(ours: Sequence[Measured], theirs: Sequence[Measured], work: Path, num: int) -> None:
    import numpy as np

    one, other = np.load(work / "ours.npz"), np.load(work / "peer.npz")
    same = sum(
        set(one["indices"][one["indptr"][row] : one["indptr"][row + 1]].tolist()) == set(other["chosen"][row].tolist())
        for row in range(num)
    )
    cpu, function, wall, memory = (of_theirs / of_ours for of_theirs, of_ours in zip(_medians(theirs), _medians(ours)))
    print(
        f"{'':>7} mergekit takes {cpu:.1f} times the CPU seconds ({function:.1f} times of the function alone), {wall:.1f} times the time and"
        f" {memory:.1f} times the memory; {same} of {num} tokens have the same atoms",
        flush=True,
    )


if __name__ == "__main__":
    command.run(main)
