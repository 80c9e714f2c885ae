"""Damage to files: what a broken disk, a cut connection or somebody who means harm makes of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy

import numpy as np

from tests.importers.fuzz.wire import Field, lists_of, parsed, serialized, varint, varints

__all__ = ["MUTATIONS", "mutated"]

_FEW = 64
"""Bytes that are inserted, removed or exchanged at once: a field or two."""

_LARGE = (0, 1, 127, 128, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 62) + 1, (1 << 64) - 1)
_NUMBER = re.compile(rb"\d+")


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with one to three mutations, one after the other.

    Half of them leave a message that can be read: what does not end in protobuf's parser comes to the importer.
    """
    for _ in range(int(rng.integers(1, 4))):
        if rng.integers(2):
            data = _with_other_fields(data, rng)
        elif data:
            data = MUTATIONS[int(rng.integers(len(MUTATIONS)))](data, rng)
    return data


def _place(data: bytes, rng: np.random.Generator) -> int:
    """Anywhere; half of the time near the beginning or the end, where weights are not."""
    size = len(data)
    if rng.integers(2):
        return int(rng.integers(size))
    near = int(rng.integers(min(size, 4096)))
    return near if rng.integers(2) else size - 1 - near


def _truncated(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: _place(data, rng)]


def _with_flipped_bits(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        changed[_place(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _with_other_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    at, count = _place(data, rng), int(rng.integers(1, _FEW))
    return data[:at] + rng.integers(0, 256, count, np.uint8).tobytes() + data[at + int(rng.integers(count + 1)) :]


def _without_a_chunk(data: bytes, rng: np.random.Generator) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + int(rng.integers(1, _FEW)) :]


def _with_a_chunk_twice(data: bytes, rng: np.random.Generator) -> bytes:
    first, last = sorted((_place(data, rng), _place(data, rng)))
    chunk = data[first : min(last, first + 8 * _FEW)]
    return data[:first] + chunk * int(rng.integers(2, 5)) + data[first:]


def _with_chunks_swapped(data: bytes, rng: np.random.Generator) -> bytes:
    count = int(rng.integers(1, _FEW))
    a, b = sorted((_place(data, rng), _place(data, rng)))
    if a + count > b:
        return data
    return data[:a] + data[b : b + count] + data[a + count : b] + data[a : a + count] + data[b + count :]


def _with_an_inflated_length(data: bytes, rng: np.random.Generator) -> bytes:
    """A length, or a number of a text, becomes another: mostly one that is far too large."""
    places = [found.span() for found in _NUMBER.finditer(data)] if data.isascii() else list(varints(data))
    if not places:
        return data
    first, last = places[int(rng.integers(len(places)))]
    number = _LARGE[int(rng.integers(len(_LARGE)))]
    return data[:first] + (str(number).encode() if data.isascii() else varint(number)) + data[last:]


def _with_other_fields(data: bytes, rng: np.random.Generator) -> bytes:
    """A message that can be read, in which a few fields are gone, there twice, in another place, or hold something else."""
    fields = None if data.isascii() else parsed(data)
    if not fields:
        return data
    for _ in range(int(rng.integers(1, 3))):
        lists = list(lists_of(fields))
        if not lists:
            break
        siblings = lists[int(rng.integers(len(lists)))]
        strange = lists[int(rng.integers(len(lists)))]
        at, kind = int(rng.integers(len(siblings))), int(rng.integers(6))
        if kind == 0:
            del siblings[at]
        elif kind == 1:
            siblings.insert(at, siblings[int(rng.integers(len(siblings)))])
        elif kind == 2:
            siblings.append(siblings.pop(at))
        else:
            siblings[at] = _exchanged(siblings[at], strange[int(rng.integers(len(strange)))], rng)
    return serialized(fields)


def _exchanged(one: Field, other: Field, rng: np.random.Generator) -> Field:
    """A field with another number, or with what another field of its kind holds."""
    if isinstance(one.value, int):
        return Field(one.key, _LARGE[int(rng.integers(len(_LARGE)))])
    if one.key & 7 == other.key & 7 and rng.integers(2):
        return Field(one.key, deepcopy(other.value))  # which may hold this one
    if isinstance(one.value, bytes) and one.value:
        changed = bytearray(one.value)
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        return Field(one.key, bytes(changed))
    return one


MUTATIONS: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _truncated,
    _with_flipped_bits,
    _with_other_bytes,
    _without_a_chunk,
    _with_a_chunk_twice,
    _with_chunks_swapped,
    _with_an_inflated_length,
    _with_other_fields,
)
"""Each makes another file of one."""
