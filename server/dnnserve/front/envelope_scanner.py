"""A ModelInferRequest is taken apart without copying its tensors: protobuf copies a bytes field when it parses it and again each
time it is looked at, which is most of what a large request costs.

Tensors are the bytes of `raw_input_contents`, a field of the outermost message. So that is walked here, field by field. What is
neither a tensor nor the request's id is joined again: a message of a few dozen bytes, the same in all requests of a client, which
protobuf parses with all its rules. Whatever is not as protobuf's own writers write it is left to protobuf as a whole.
"""

from __future__ import annotations

from dnnapi.inference import grpc_service_pb2 as inference

__all__ = ["take_apart"]

_LENGTH_DELIMITED = 2  # wire type
_RAW = inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_ID = inference.ModelInferRequest.ID_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_KNOWN = frozenset(field.number << 3 | _LENGTH_DELIMITED for field in inference.ModelInferRequest.DESCRIPTOR.fields)
"""The first byte of every field: there are no numbers above 15, and all are strings, bytes or messages."""

_LONGEST_LENGTH = 4  # bytes of a length: up to 256 MiB, more than a message may have


def take_apart(message: bytes) -> tuple[bytes, str, list[memoryview]] | None:
    """Part a serialized ModelInferRequest into what may be the same in the next one and what is not.

    Returns:
        The message without `id` and `raw_input_contents`; the id; and the contents as views of the message, in their order:
        protobuf reads the message as it reads the first, plus these. None: a field that is unknown, longer than the message, or
        written in an unusual way.
    """
    size, view = len(message), memoryview(message)
    rest: list[bytes] = []
    contents: list[memoryview] = []
    request_id: str | None = None
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
            elif tag == _ID:
                if request_id is not None:
                    return None  # the last would count, and each would have to be text
                request_id = message[start:end].decode()
                rest.append(message[copied:position])
                copied = end
            position = end
    except (IndexError, UnicodeDecodeError):
        return None
    rest.append(message[copied:])
    return b"".join(rest), request_id or "", contents
