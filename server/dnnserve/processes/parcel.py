"""A value for other processes, in an anonymous file: every one of them maps its arrays, none copies them."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from typing import Any, Self

__all__ = ["Parcel", "unpack"]

_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")


class Parcel:
    """What `unpack` finds behind `fd`. Thread-safe.

    Weights are what makes such a value large; they stand in the file as they stand in memory, and pages that all processes map are
    there once. It is read by processes of ours alone, and so it may be a pickle.

    Args:
        value: Anything that can be pickled.
    """

    def __init__(self, value: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(head), *(one.raw() for one in buffers)]
        self.fd = os.memfd_create("dnnserve-parcel")
        with open(self.fd, "wb", closefd=False) as file:
            file.write(_LENGTH.pack(len(parts)))
            for part in parts:
                file.write(_LENGTH.pack(part.nbytes))
            for part in parts:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                file.write(part)

    def close(self) -> None:
        """Give the file back; processes that have unpacked it keep their own view. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def unpack(fd: int) -> Any:
    """The value of a parcel, whose arrays may be written: what is written is this process's own."""
    file = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    (count,) = _LENGTH.unpack_from(file)
    lengths = [_LENGTH.unpack_from(file, _LENGTH.size * (1 + number))[0] for number in range(count)]
    position, parts = _LENGTH.size * (1 + count), []
    for length in lengths:
        position += -position % _ALIGNMENT
        parts.append(file[position : position + length])
        position += length
    return pickle.loads(parts[0], buffers=parts[1:])
