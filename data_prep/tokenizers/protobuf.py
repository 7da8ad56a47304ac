"""The wire format of protocol buffers, as far as SentencePiece's file needs it: fields read one by one, and written back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


def provide_sentencepiece_messages() -> None:
    """Let transformers read SentencePiece's file by its own classes where those of the `sentencepiece` package need a newer protobuf than NeMo's."""
    name = "sentencepiece.sentencepiece_model_pb2"
    try:
        importlib.import_module(name)
    except Exception:  # of protobuf's own kind
        from transformers.utils import sentencepiece_model_pb2_new

        sys.modules[name] = sentencepiece_model_pb2_new


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        value: an int, or the bytes of what has a length or is a float.
        raw: all bytes of the field, its number included.
    """

    number: int
    value: int | bytes
    raw: bytes


def read_fields(data: bytes) -> Iterator[Field]:
    """The fields of a message, in order.

    Raises:
        ValueError, IndexError: if the bytes are not a message.
    """
    place = 0
    while place < len(data):
        start = place
        key, place = _read_varint(data, place)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, place = _read_varint(data, place)
        elif wire_type == _WITH_LENGTH or wire_type in _FIXED_SIZES:
            if wire_type == _WITH_LENGTH:
                length, place = _read_varint(data, place)
            else:
                length = _FIXED_SIZES[wire_type]
            if place + length > len(data):
                raise ValueError("the file ends in the middle of a field")
            value, place = data[place : place + length], place + length
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        yield Field(number, value, data[start:place])


def int_field(number: int, value: int) -> bytes:
    """A field that holds a number from 0."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds bytes, a text or a message."""
    return _varint(number << 3 | _WITH_LENGTH) + _varint(len(value)) + value


def float_field(number: int, four_bytes: bytes) -> bytes:
    """A field that holds a float, given as its four bytes."""
    return _varint(number << 3 | _FOUR_BYTES) + four_bytes


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
