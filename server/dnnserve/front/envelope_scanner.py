"""A ModelInferRequest is taken apart without copying its tensors: protobuf copies a bytes field when it parses it and again each
time it is looked at, which is most of what a large request costs.

Tensors are the bytes of `raw_input_contents`, a field of the outermost message. So that is walked here, field by field. What is
neither a tensor nor the request's id is joined again: a message of a few dozen bytes, the same in all requests of a client, which
protobuf parses with all its rules. Whatever is not as protobuf's own writers write it is left to protobuf as a whole.

Even the walk is done once for messages that differ in the bytes of their ids and tensors alone, as a client's mostly do: where
these lie is remembered by the length of the message.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnapi.inference import grpc_service_pb2 as inference

__all__ = ["take_apart"]

_LENGTH_DELIMITED = 2  # wire type
_RAW = inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_ID = inference.ModelInferRequest.ID_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_KNOWN = frozenset(field.number << 3 | _LENGTH_DELIMITED for field in inference.ModelInferRequest.DESCRIPTOR.fields)
"""The first byte of every field: there are no numbers above 15, and all are strings, bytes or messages."""

_LONGEST_LENGTH = 4  # bytes of a length: up to 256 MiB, more than a message may have


_LONGEST_KEPT = 1024  # bytes beside id and tensor
_KEPT_LAYOUTS = 1024


class _Layout(NamedTuple):
    """Where id and tensor lie in messages of one length, the tensor at the end. Immutable.

    Args:
        before: What stands before the id.
        id_end: Where that ends; where there is none, `before` ends there.
        behind: What stands between id and tensor.
        form: Of all of them.
    """

    before: bytes
    id_end: int
    behind: bytes
    form: bytes


_layouts: dict[int, _Layout] = {}  # by the length of messages; its operations are atomic


def take_apart(message: bytes) -> tuple[bytes, str, list[memoryview]] | None:
    """Part a serialized ModelInferRequest into what may be the same in the next one and what is not.

    Returns:
        The form, which is the message without `id` and `raw_input_contents`; the id; and the contents as views of the message, in
        their order: protobuf reads the message as it reads the form, plus these. None: a field that is unknown, longer than the
        message, or written in an unusual way.
    """
    layout = _layouts.get(len(message))
    try:
        if layout is not None:
            before, id_end, behind, form = layout
            if message.startswith(before) and message.startswith(behind, id_end):
                request_id = message[len(before) : id_end].decode()
                return form, request_id, [memoryview(message)[id_end + len(behind) :]]
        return _walk(message)
    except (IndexError, UnicodeDecodeError):
        return None


def _walk(message: bytes) -> tuple[bytes, str, list[memoryview]] | None:
    """Look at every field, for `take_apart`.

    Raises:
        IndexError: the message ends within a field's length.
        UnicodeDecodeError: the id is no text.
    """
    size, view = len(message), memoryview(message)
    rest: list[bytes] = []
    contents: list[memoryview] = []
    id_start = id_end = position = copied = 0
    while position < size:
        tag, length, start = message[position], message[position + 1], position + 2
        if length & 0x80:
            start -= 1
            length = shift = 0
            while (byte := message[start]) & 0x80:
                length |= (byte & 0x7F) << shift
                shift += 7
                start += 1
            length |= byte << shift
            start += 1
            if byte == 0 or start - position > 1 + _LONGEST_LENGTH:
                return None
        end = start + length
        if tag not in _KNOWN or end > size:
            return None
        if tag == _RAW:
            rest.append(message[copied:position])
            contents.append(view[start:end])
            copied = end
        elif tag == _ID:
            if id_start:
                return None  # the last would count, and each would have to be text
            id_start, id_end = start, end
            rest.append(message[copied:position])
            copied = end
        position = end
    rest.append(message[copied:])
    form, request_id = b"".join(rest), message[id_start:id_end].decode()
    if len(contents) == 1 and copied == size > id_end and len(form) <= _LONGEST_KEPT:
        tensor = size - len(contents[0])
        id_start, id_end = (id_start, id_end) if id_start else (tensor, tensor)
        if len(_layouts) >= _KEPT_LAYOUTS:
            _layouts.clear()
        _layouts[size] = _Layout(message[:id_start], id_end, message[id_end:tensor], form)
    return form, request_id, contents
