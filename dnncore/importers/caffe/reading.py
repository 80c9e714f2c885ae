"""Caffe's files as messages: text and binary, no larger than they may be. What the messages mean is not known here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from dnncore.errors import ModelImportError
from dnncore.importers.files import read_bounded

__all__ = ["Source", "read_binary", "read_text"]

Source = str | os.PathLike[str] | bytes
"""The path of a file, or what is in it."""

_MAX_TEXT_BYTES = 4 << 20
"""ResNet-152 takes 0.1 MB; the parser of text is slow, and whoever sends more wants to keep it busy."""

_MAX_BINARY_BYTES = (2 << 30) - 1
"""What one message of protobuf may have."""

_M = TypeVar("_M", bound=Message)


def read_text(source: Source, message: type[_M], *, lenient: bool = False) -> _M:
    """Parse protobuf's text format.

    Args:
        source: The file.
        message: What it is.
        lenient: Pass over fields that the message does not have.

    Raises:
        ModelImportError: it cannot be read, is too large or malformed; the message has line and column.
    """
    what, data = _data(source, _MAX_TEXT_BYTES)
    try:
        return text_format.Parse(data.decode(), message(), allow_unknown_field=lenient)
    except (text_format.ParseError, ValueError, RecursionError, OverflowError) as error:
        raise ModelImportError(
            what, [f"is no text of a {message.DESCRIPTOR.name}: {error or 'nested too deeply'}"]
        ) from error


def read_binary(source: Source, message: type[_M]) -> _M:
    """Parse protobuf's wire format.

    Raises:
        ModelImportError: it cannot be read, is too large or malformed.
    """
    what, data = _data(source, _MAX_BINARY_BYTES)
    try:
        return message.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelImportError(what, [f"is no {message.DESCRIPTOR.name}, or truncated: {error}"]) from error


def name_of(source: Source) -> str:
    """What messages call it."""
    return f"{len(source)} bytes" if isinstance(source, bytes) else str(source)


def _data(source: Source, most: int) -> tuple[str, bytes]:
    """Name and contents."""
    what = name_of(source)
    if isinstance(source, bytes):
        size, data = len(source), source
    else:
        try:
            data = read_bounded(Path(source), most)
        except (OSError, ValueError) as error:
            raise ModelImportError(what, [f"cannot be read: {error}"]) from error
        size = len(data)
    if size > most:
        raise ModelImportError(what, [f"has more than {most} bytes, which is the most that is read"])
    return what, data
