"""Orthogonal matching pursuit: each vector as a sum of a few others, with signs (Pati et al. 1993)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from common import native
from conversion.embeddings.spaces.nearest import row_lengths, unit_rows
from conversion.embeddings.spaces.token_vectors import Rows

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = Path(__file__).with_name("pursuit.c")
_BLOCK_ROWS = 512
_BRIEF_ROWS = 256  # whose products and bases exist at once: 60 MB with 20,000 atoms, 64 steps and 576 dimensions
_DEPENDENT = 1e-3  # an atom of which less is left beside the chosen ones adds nothing but rounding
_EXACT = 1e-5  # a vector of which less is left is done
_MAX_GRAM_BYTES = 4 << 30  # 46,000 atoms
_LANES = 16  # numbers that the compiled loops treat as one

Pursuit = Callable[["Tensor"], "tuple[Tensor, Tensor]"]
"""From unit vectors (num_vectors, size) to ids of atoms and their coefficients, both (num_vectors, steps); 0 where unused."""


def pursuit_weights(vectors: Rows, atoms: Rows, *, num_atoms: int, long_first: bool = False) -> sparse.csr_matrix:
    """Coefficients of the atoms whose sum comes nearest to each vector, chosen one after the other.

    Atoms are compared at length one, as in the textbook; a vector stops early when it is exact or when the next atom is a
    combination of the chosen ones (a twin of one, for instance).

    Args:
        vectors: (num_vectors, size)
        atoms: (num_all_atoms, size), without rows of zeros.
        num_atoms: most atoms of one vector.
        long_first: compare atoms at their own length, so that long ones are chosen sooner.

    Returns:
        (num_vectors, num_all_atoms) float64, coefficients of the atoms at their own length.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unit = torch.from_numpy(unit_rows(atoms)).to(device)
    lengths = row_lengths(atoms)
    preference = torch.from_numpy(lengths.astype(np.float32) if long_first else np.ones(len(atoms), np.float32)).to(device)
    steps = min(num_atoms, len(atoms), atoms.shape[1])
    pursue = _fastest_pursuit(len(vectors), unit, steps, preference)
    parts = [sparse.csr_matrix((0, len(atoms)), dtype=np.float64)]
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = torch.from_numpy(vectors[start : start + _BLOCK_ROWS].astype(np.float32)).to(device)
        scale = block.norm(dim=1, keepdim=True)
        chosen, coefficients = pursue(block / scale.clamp_min(1e-30))
        coefficients = (coefficients * scale).cpu().numpy()
        kept = coefficients != 0
        ids = chosen.cpu().numpy()[kept]
        rows = np.repeat(np.arange(len(block)), kept.sum(axis=1))
        parts.append(sparse.csr_matrix((coefficients[kept] / lengths[ids], (rows, ids)), shape=(len(block), len(atoms))))
    return sparse.vstack(parts, format="csr")


def _fastest_pursuit(num_vectors: int, unit: Tensor, steps: int, preference: Tensor) -> Pursuit:
    """The way that costs least; all make the same choices."""
    num_all_atoms, size = unit.shape
    on_cpu = unit.device.type == "cpu"
    way = cheapest_way(num_vectors, num_all_atoms, size, steps, has_bfloat16=_has_bfloat16()) if on_cpu else "plain"
    library = native.load(SOURCE) if way != "plain" else None
    if library is None:
        return lambda block: _pursue(block, unit, steps, preference)
    return (_GramPursuit if way == "gram" else _BriefPursuit)(library, unit, steps, preference)


def cheapest_way(num_vectors: int, num_all_atoms: int, size: int, steps: int, *, has_bfloat16: bool) -> str:
    """`gram`: from the products of all pairs of atoms; `brief`: from products in bfloat16; `plain`: in float32.

    Seconds of one core of an AMD EPYC of 2024; what is compared is their ratios.  The products of all pairs are gigabytes, where the
    other ways hold megabytes, so they have to save a third of the time.
    """
    product = 2.0 * num_all_atoms * size  # one vector's with all atoms
    seconds = {"plain": num_vectors * steps * (product / 35e9)}
    if has_bfloat16:
        seconds["brief"] = num_vectors * steps * (product / 250e9 + num_all_atoms / 4e9)
    if 2 * num_all_atoms**2 <= _MAX_GRAM_BYTES:
        seconds["gram"] = 1.5 * (num_all_atoms * product / 2 / 60e9 + num_vectors * steps**2 * num_all_atoms / 25e9)
    return min(seconds, key=lambda way: seconds[way])


@cache
def _has_bfloat16() -> bool:
    """Whether the processor multiplies matrices of bfloat16; others would only imitate it."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


class _BriefPursuit:
    """The same choices as `_pursue`, from products in bfloat16: those that may be the highest are made again (see pursuit.c)."""

    def __init__(self, library: ctypes.CDLL, unit: Tensor, steps: int, preference: Tensor) -> None:
        import torch

        self._library, self._steps = library, steps
        self._atoms, self._preference = _padded(unit, preference)
        self._rounded = self._atoms.to(torch.bfloat16)
        blocks = zip(self._atoms.split(_BLOCK_ROWS), self._rounded.split(_BLOCK_ROWS))
        self._error = max(float((exact - rounded.float()).norm(dim=1).max()) for exact, rounded in blocks)

    def __call__(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        chosen, coefficients = zip(*(self._pursue_block(block) for block in vectors.split(_BRIEF_ROWS)))
        return torch.cat(chosen), torch.cat(coefficients)

    def _pursue_block(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        num, steps, size = len(vectors), self._steps, self._atoms.shape[1]
        residuals = torch.zeros(num, size)
        residuals[:, : vectors.shape[1]] = vectors
        rounded = torch.empty(num, size, dtype=torch.bfloat16)
        products = torch.empty(num, len(self._atoms), dtype=torch.bfloat16)
        basis = torch.empty(num, steps, size)
        triangle = torch.empty(num, steps, steps, dtype=torch.float64)
        projections, coefficients = (torch.zeros(num, steps, dtype=torch.float64) for _ in range(2))
        chosen = torch.zeros(num, steps, dtype=torch.int32)
        nums = torch.zeros(num, dtype=torch.int32)
        state = (products, rounded, residuals, basis, triangle, projections, chosen, nums)
        parts = list(zip(*(array.tensor_split(torch.get_num_threads()) for array in state), strict=True))
        with ThreadPoolExecutor(len(parts)) as pool:
            for step in range(steps):
                rounded.copy_(residuals)
                torch.mm(rounded, self._rounded.T, out=products)
                if not sum(pool.map(partial(self._take, step), parts)):
                    break
        sizes = (ctypes.c_long(num), ctypes.c_int(steps))
        self._library.all_coefficients(_pointer(triangle), _pointer(projections), _pointer(nums), *sizes, _pointer(coefficients))
        return chosen.long(), coefficients

    def _take(self, step: int, part: tuple[Tensor, ...]) -> int:
        sizes = (*self._atoms.shape, len(part[0]))
        take = self._library.take_atoms
        take.restype = ctypes.c_long
        taken = take(
            *(_pointer(array) for array in (self._atoms, self._preference, *part)),
            *(ctypes.c_long(size) for size in sizes),
            *(ctypes.c_int(count) for count in (self._steps, step)),
            ctypes.c_float(self._error),
        )
        if taken < 0:
            raise MemoryError("no memory for the pursuit of one vector")
        return int(taken)


class _GramPursuit:
    """The same choices as `_pursue`, from the products of all pairs of atoms (Rubinstein et al. 2008) with compiled loops.

    The products are kept in 16 bits: they only tell where a choice needs no second look (see pursuit.c).
    """

    def __init__(self, library: ctypes.CDLL, unit: Tensor, steps: int, preference: Tensor) -> None:
        import torch

        self._library, self._unit, self._steps, self._preference = library, unit, steps, preference
        num = len(unit)
        self._atoms, self._padded_preference = _padded(unit, preference)
        self._gram = torch.empty(num, len(self._atoms), dtype=torch.int16)
        for start in range(0, num, _BLOCK_ROWS):  # half of the products, as the matrix is symmetric
            stop = min(start + _BLOCK_ROWS, num)
            products = (self._atoms[start:stop] @ self._atoms[start:].T).mul_(32767).round_().clamp_(-32767, 32767).to(torch.int16)
            self._gram[start:stop, start:] = products
            self._gram[stop:, start:stop] = products[:, stop - start : num - start].T

    def __call__(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        size = vectors.shape[1]
        padded = torch.zeros(len(vectors), self._atoms.shape[1])
        padded[:, :size] = vectors
        start = padded @ self._atoms.T
        chosen = torch.zeros(len(vectors), self._steps, dtype=torch.int32)
        coefficients = torch.zeros(len(vectors), self._steps, dtype=torch.float64)
        nums = torch.empty(len(vectors), dtype=torch.int32)
        parts = list(zip(*(x.tensor_split(torch.get_num_threads()) for x in (padded, start, chosen, coefficients, nums)), strict=True))
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(self._pursue_part, parts))
        left = nums < 0
        if left.any():
            ids, values = _pursue(vectors[left], self._unit, self._steps, self._preference)
            chosen[left], coefficients[left] = ids.int(), values
        return chosen.long(), coefficients

    def _pursue_part(self, part: tuple[Tensor, ...]) -> None:
        vectors, start, chosen, coefficients, nums = part
        num_atoms, stride = self._gram.shape
        arrays = (self._gram, self._atoms, self._padded_preference, vectors, start)
        sizes = (num_atoms, stride, self._atoms.shape[1], len(vectors))
        status = self._library.pursue_all(
            *(_pointer(array) for array in arrays),
            *(ctypes.c_long(size) for size in sizes),
            ctypes.c_int(self._steps),
            *(_pointer(array) for array in (chosen, coefficients, nums)),
        )
        if status != 0:
            raise MemoryError("no memory for the pursuit of one vector")


def _padded(unit: Tensor, preference: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms and preferences with zeros behind them, as the compiled loops read them."""
    import torch

    num, size = unit.shape
    atoms = torch.zeros(-(-num // _LANES) * _LANES, -(-size // _LANES) * _LANES)
    atoms[:num, :size] = unit
    padded = torch.zeros(len(atoms))
    padded[:num] = preference
    return atoms, padded


def _pointer(array: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data_ptr())


def _pursue(vectors: Tensor, unit: Tensor, steps: int, preference: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of the chosen unit atoms and their coefficients for vectors of length one, both (num_vectors, steps); unused places have coefficient 0.

    Similarities are multiplied by the preference (num_all_atoms,).  The chosen atoms are kept as Q R with orthonormal Q, so that each step is one product with all atoms.
    """
    import torch

    num, size = vectors.shape
    basis = torch.zeros(num, steps, size, device=vectors.device)
    triangle = torch.eye(steps, device=vectors.device, dtype=torch.float64).repeat(num, 1, 1)
    projections = torch.zeros(num, steps, device=vectors.device, dtype=torch.float64)
    chosen = torch.zeros(num, steps, device=vectors.device, dtype=torch.long)
    residual = vectors.clone()
    is_open = torch.ones(num, device=vectors.device, dtype=torch.bool)
    for step in range(steps):
        is_open &= residual.norm(dim=1) > _EXACT
        if not is_open.any():
            break
        similarity = (residual @ unit.T).abs_().mul_(preference)
        similarity.scatter_(1, chosen[:, :step], -1.0)
        best = similarity.max(dim=1).indices  # three times as fast as argmax on a CPU
        atom = unit[best]
        earlier = basis[:, :step]
        inner = torch.zeros(num, step, device=vectors.device)
        rest = atom
        for _ in range(2):  # once more for what rounding left
            overlap = torch.bmm(earlier, rest[:, :, None])[:, :, 0]
            inner += overlap
            rest = rest - torch.bmm(overlap[:, None], earlier)[:, 0]
        left = rest.norm(dim=1)
        is_open &= left > _DEPENDENT
        rest = torch.where(is_open[:, None], rest / left.clamp_min(1e-30)[:, None], 0.0)
        basis[:, step] = rest
        chosen[:, step] = best
        triangle[is_open, :step, step] = inner[is_open].double()
        triangle[is_open, step, step] = left[is_open].double()
        projection = (residual * rest).sum(dim=1)
        projections[:, step] = projection.double()
        residual = residual - projection[:, None] * rest
    coefficients = torch.linalg.solve_triangular(triangle, projections[:, :, None], upper=True)[:, :, 0]
    return chosen, coefficients
