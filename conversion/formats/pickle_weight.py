"""What a pickle costs its reader, found before it is read.

A pickle can refer to what it has made, so a few bytes can stand for a tree of any size: forty pairs of the pair before take 2^40
steps to be hashed.  What `torch.save` and Megatron write is about as large as what it stands for, so the file bounds the work.
"""

from __future__ import annotations

import pickletools
from typing import IO

_STEPS_PER_BYTE = 64  # checkpoints take less than three
_FREE_STEPS = 4096
_MAX_DEPTH = 100  # below which Python's own recursion is safe; checkpoints have less than twenty
_LONG_INTEGER = 1 << 60  # integers from here on can be chosen to have one hash, so that a dictionary compares each with all

_GROW = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))
_PUT = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GET = frozenset(("GET", "BINGET", "LONG_BINGET"))

# Something that is made: how many parts it has, and how deep it is.  A list, as containers grow where they are.
_Piece = list[int]
_LEAF: _Piece = [1, 0]


def require_light(stream: IO[bytes]) -> None:
    """Go over a pickle, up to its end.

    Raises:
        ValueError: if it is corrupt, or asks for more work than its size explains.
    """
    start = stream.tell()
    size = stream.seek(0, 2) - start
    stream.seek(start)
    steps_left = _FREE_STEPS + _STEPS_PER_BYTE * size
    stack: list[_Piece | None] = []  # None is a mark
    memo: dict[int, _Piece] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        name = opcode.name
        if name in _PUT:
            index: int = len(memo) if argument is None else argument
            if index > size:  # Python's reader would make room for all of them: one flipped bit can ask for 64 GB
                raise ValueError(f"it numbers an object {index}")
            memo[index] = _top(stack)
        elif name in _GET:
            if argument not in memo:
                raise ValueError(f"it refers to object {argument}, which it has not made")
            stack.append(memo[argument])
        elif name == "DUP":
            stack.append(_top(stack))
        elif name == "MARK":
            stack.append(None)
        elif opcode.stack_before:
            steps_left -= _combine(opcode, stack)
        elif opcode.stack_after:
            is_long = isinstance(argument, int) and abs(argument) >= _LONG_INTEGER
            stack.append([size, 0] if is_long else _LEAF)
        if steps_left < 0:
            raise ValueError("it stands for more than its size explains")


def _top(stack: list[_Piece | None]) -> _Piece:
    if not stack or (top := stack[-1]) is None:
        raise ValueError("it refers to nothing")
    return top


def _combine(opcode: pickletools.OpcodeInfo, stack: list[_Piece | None]) -> int:
    """Do to the stack what an operation does that takes something from it, and give the number of parts that it goes over."""
    used, singles = [], len(opcode.stack_before)
    if pickletools.markobject in opcode.stack_before:
        while stack and (piece := stack.pop()) is not None:
            used.append(piece)
        singles = opcode.stack_before.index(pickletools.markobject)
    elif opcode.name == "POP" and stack and stack[-1] is None:
        singles = 0
        stack.pop()
    for _ in range(singles):
        used.append(_top(stack))
        stack.pop()
    grown = used.pop() if opcode.name in _GROW else _LEAF
    parts, depth = grown[0] + sum(piece[0] for piece in used), max(grown[1], *(piece[1] + 1 for piece in used), 0)
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is more than {_MAX_DEPTH} deep")
    if opcode.stack_after:
        made = [0, 0] if grown is _LEAF else grown
        made[:] = parts, depth
        stack.append(made)
    return parts - grown[0] + 1
