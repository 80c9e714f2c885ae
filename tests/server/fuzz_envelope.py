"""The scanner of ModelInferRequest against protobuf: what it takes apart, protobuf must read as the parts together, and refuse
where it refuses the first.

    python -m tests.server.fuzz_envelope --count 1000000
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.front.envelope_scanner import take_apart
from google.protobuf.message import DecodeError

_LONGEST = 150  # bytes at the front that are changed: what comes later is a tensor


@dataclass(slots=True)
class Counts:
    """How the messages of a run were read."""

    taken_apart: int = 0
    taken_apart_and_refused: int = 0
    left_to_protobuf: int = 0


def fuzz(count: int, seed: int) -> Counts:
    """Compare so many changed messages.

    Raises:
        AssertionError: one is read otherwise than by protobuf.
    """
    counts = Counts()
    for message in _messages(count, random.Random(seed)):
        parts = take_apart(message)
        if parts is None:
            counts.left_to_protobuf += 1
            continue
        counts.taken_apart += 1
        whole, rest = _parsed(message), _parsed(parts[0])
        if whole is None or rest is None:
            assert whole is rest, message
            counts.taken_apart_and_refused += 1
            continue
        assert (parts[1], list(map(bytes, parts[2]))) == (whole.id, list(whole.raw_input_contents)), message
        assert (rest.id, list(rest.raw_input_contents)) == ("", []), message
        rest.id = whole.id
        rest.raw_input_contents.extend(whole.raw_input_contents)
        # Equal up to the order in which a map is written, which serialization does not promise.
        assert rest == whole, message
    return counts


def _parsed(message: bytes) -> Any:
    try:
        return inference.ModelInferRequest.FromString(message)
    except DecodeError:
        return None


def _seeds() -> list[bytes]:
    """Requests as clients write them: of one tensor, of several, with every kind of field, and empty."""
    plain = inference.ModelInferRequest(model_name="resnet50", id="7")
    plain.inputs.add(name="data", datatype="FP32", shape=[1, 3, 4, 4])
    plain.raw_input_contents.append(bytes(range(192)))
    full = inference.ModelInferRequest(model_name="größer", model_version="3", id="x" * 200)
    full.parameters["timeout"].int64_param = 5000
    for name in ("left", "right"):
        tensor = full.inputs.add(name=name, datatype="UINT8", shape=[300, 1 << 40, -1])
        tensor.parameters["binary"].bool_param = True
        full.raw_input_contents.append(name.encode() * 40)
    full.outputs.add(name="scores").parameters["classification"].int64_param = 3
    typed = inference.ModelInferRequest(model_name="m")
    typed.inputs.add(name="a", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1.5, -2.0])
    empty = inference.ModelInferRequest()
    empty.raw_input_contents.append(b"")
    return [message.SerializeToString() for message in (plain, full, typed, empty)]


def _messages(count: int, choices: random.Random) -> Iterator[bytes]:
    seeds = _seeds()
    for _ in range(count):
        message = bytearray(choices.choice(seeds))
        if choices.random() < 0.1:
            message += choices.choice(seeds)
        if choices.random() < 0.1:
            message = message[: choices.randrange(len(message) + 1)]
        for _ in range(choices.randrange(5)):
            place = choices.randrange(min(len(message), _LONGEST) + 1)
            match choices.randrange(4):
                case 0 if place < len(message):
                    message[place] = choices.randrange(256)
                case 1 if place < len(message):
                    del message[place]
                case 2:
                    message.insert(place, choices.randrange(256))
                case _:  # a length in more bytes than it needs, or one that is far too large
                    message[place:place] = bytes([choices.choice((0x80, 0xFF))] * choices.randrange(1, 6))
        yield bytes(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="messages")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    options = parser.parse_args()
    started = time.perf_counter()
    counts = fuzz(options.count, options.seed)
    print(f"{options.count} messages in {time.perf_counter() - started:.0f} s, no difference: {counts}")


if __name__ == "__main__":
    main()
