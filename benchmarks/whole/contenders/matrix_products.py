"""Matrix products of one shape in float32, until they have done so many operations."""

import sys

import torch

operations, rows, inner, columns = float(sys.argv[1]), *map(int, sys.argv[2:5])
left, right = torch.randn(rows, inner), torch.randn(inner, columns)
out = torch.empty(rows, columns)
for _ in range(max(1, round(operations / (2 * rows * inner * columns)))):
    torch.mm(left, right, out=out)
