from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conversion.formats.lazy_tensor import bits_of
from conversion.formats.numbers import numbers_of, rounded_to

HALVES = ("float16", "bfloat16")
ALL = (*HALVES, "float32", "float64", "float8_e4m3fn", "float8_e5m2")


def dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


@pytest.mark.parametrize("name", HALVES)
def test_every_half_is_the_number_that_torch_says(name: str) -> None:
    bits = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    expected = torch.from_numpy(bits).view(dtype(name)).float().numpy()
    np.testing.assert_array_equal(numbers_of(bits, name), expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(rounded_to(expected, name)[is_number], bits[is_number])
    assert np.isnan(numbers_of(rounded_to(expected, name), name)).tolist() == np.isnan(expected).tolist()


@pytest.mark.parametrize("name", ALL)
def test_matrices_of_any_dtype_keep_their_shape(name: str) -> None:
    tensor = torch.randn(5, 7).to(dtype(name))
    found = numbers_of(bits_of(tensor), name)
    assert found.dtype == (np.float64 if name == "float64" else np.float32)
    np.testing.assert_array_equal(found, tensor.to(dtype(str(found.dtype))).numpy())
    np.testing.assert_array_equal(rounded_to(tensor.float().numpy(), name), bits_of(tensor))


@given(
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64),
    st.lists(st.sampled_from([0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x18000, 0x1000, 0x3000, 0xFFF, 0x1001]), min_size=1, max_size=16),
)
def test_rounds_as_torch_does_halves_to_even(patterns: list[int], ends: list[int]) -> None:
    near_halves = [(pattern & 0xFFFE0000) + end for pattern, end in zip(patterns, ends, strict=False)]
    numbers = np.array(patterns + near_halves, dtype=np.uint32).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    for name in (*HALVES, "float64"):
        np.testing.assert_array_equal(rounded_to(numbers, name), bits_of(torch.from_numpy(numbers).to(dtype(name))), err_msg=name)


def test_float32_is_not_copied() -> None:
    numbers = np.ones((3, 4), np.float32)
    assert np.shares_memory(rounded_to(numbers, "float32"), numbers)
    assert np.shares_memory(numbers_of(numbers.view(np.int32), "float32"), numbers)
