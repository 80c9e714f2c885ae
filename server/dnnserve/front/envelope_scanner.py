"""A ModelInferRequest is taken apart without copying its tensors: protobuf copies a bytes field when it parses it and again each
time it is looked at, which is most of what a large request costs.

Tensors are the bytes of `raw_input_contents`, a field of the outermost message. So that is walked here, field by field, and what
is not a tensor is joined again: a message of a few dozen bytes, which protobuf parses with all its rules. Whatever is not as
protobuf's own writers write it is left to protobuf as a whole.
"""

from __future__ import annotations

from dnnapi.inference import grpc_service_pb2 as inference

__all__ = ["split_raw_contents"]

_LENGTH_DELIMITED = 2  # wire type
_RAW = inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_KNOWN = frozenset(field.number << 3 | _LENGTH_DELIMITED for field in inference.ModelInferRequest.DESCRIPTOR.fields)
"""The first byte of every field: there are no numbers above 15, and all are strings, bytes or messages."""

_LONGEST_LENGTH = 4  # bytes of a length: up to 256 MiB, more than a message may have


def split_raw_contents(message: bytes) -> tuple[bytes, list[memoryview]] | None:
    """Part the tensors of a serialized ModelInferRequest from the rest.

    Returns:
        The message without `raw_input_contents`, and these as views of it, in their order: protobuf reads the message as it reads
        the rest, plus these. None: a field that is unknown, longer than the message, or written in an unusual way.
    """
    size, view = len(message), memoryview(message)
    rest: list[bytes] = []
    contents: list[memoryview] = []
    position = copied = 0
    try:
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
            position = end
    except IndexError:
        return None
    rest.append(message[copied:])
    return b"".join(rest), contents
