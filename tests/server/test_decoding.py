"""The pool that decodes: how many at a time, for whom, and how much."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from dnnserve.errors import InvalidRequestError, QueueFullError
from dnnserve.front.decoding import DecodePool, PixelLimits
from dnnserve.front.sources import Checkpoint, Images
from PIL import Image

from tests.server.fakes import PATIENCE_S, make_spec

ANY_NUMBER = PixelLimits(10**9, 10**9)


class GoneError(Exception):
    pass


def png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def images(files: list[bytes]) -> Images:
    preprocessing = make_spec().preprocessing
    assert preprocessing is not None
    return Images(files, preprocessing)


@dataclass
class Results:
    """What became of the work that was given to a pool."""

    ends: list[Sequence[np.ndarray] | Exception] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def end(self, result: Sequence[np.ndarray] | Exception) -> None:
        with self.changed:
            self.ends.append(result)
            self.changed.notify_all()

    def wait(self, count: int) -> list[Sequence[np.ndarray] | Exception]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ends) >= count, PATIENCE_S)
        return self.ends


@dataclass
class Held:
    """A source whose work stands still until it is let go."""

    pixels: int = 0
    inside: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        return self.pixels

    def rows(self, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        self.inside.release()
        assert self.go.wait(PATIENCE_S)
        return (np.zeros(1),)


@contextmanager
def pool(
    threads: int = 2, waiting: int = 100, limits: PixelLimits = ANY_NUMBER
) -> Iterator[tuple[Callable[..., None], Results]]:
    results = Results()
    decoder = DecodePool(limits, waiting, threads)
    yield lambda source, check=lambda: None: decoder.submit(source, check, results.end, results.end), results
    decoder.close()


def test_images_become_pixels_at_the_nets_size() -> None:
    with pool() as (submit, results):
        submit(images([png(7, 5), png(4, 2)]))
        (read,) = results.wait(1)
    assert not isinstance(read, Exception)
    (rows,) = read
    assert rows.shape == (2, 2, 4, 3)
    assert rows.dtype == np.uint8


def test_as_many_are_at_work_as_there_are_threads_and_no_more_wait_than_may() -> None:
    with pool(threads=2, waiting=3) as (submit, results):
        source = Held()
        for _ in range(3):
            submit(source)
        for _ in range(2):
            assert source.inside.acquire(timeout=PATIENCE_S)
        assert not source.inside.acquire(timeout=0.05)
        with pytest.raises(QueueFullError, match="3 requests wait to be decoded") as caught:
            submit(source)
        assert caught.value.retry_after_ms
        source.go.set()
        assert len(results.wait(3)) == 3


def test_nobody_decodes_what_nobody_waits_for_any_more() -> None:
    looks = 0

    def gone_at_the_third_image() -> None:
        nonlocal looks
        looks += 1
        if looks == 8:  # once for all, five times before a header, and then before each image
            raise GoneError

    with pool() as (submit, results):
        submit(images([png(4, 2)] * 5), gone_at_the_third_image)
        (error,) = results.wait(1)
    assert isinstance(error, GoneError)
    assert looks == 8


def test_a_request_has_a_budget_of_pixels_that_its_headers_are_compared_with() -> None:
    with pool(limits=PixelLimits(request=100, server=1000)) as (submit, results):
        submit(images([png(10, 10)]))
        results.wait(1)
        submit(images([png(10, 10)[:60], png(1, 1)]))  # no pixels behind the first header
        error = results.wait(2)[1]
    assert not isinstance(results.ends[0], Exception)
    assert isinstance(error, InvalidRequestError)
    assert "101 pixels; at most 100" in str(error)


def test_the_server_has_one_too_and_gets_back_what_was_taken() -> None:
    with pool(limits=PixelLimits(request=100, server=150)) as (submit, results):
        held = Held(pixels=100)
        submit(held)
        assert held.inside.acquire(timeout=PATIENCE_S)
        submit(images([png(10, 6)]))
        error = results.wait(1)[0]
        assert isinstance(error, QueueFullError)
        assert "100 pixels are being decoded, and the request's have 60; at most 150" in str(error)
        held.go.set()
        results.wait(2)
        submit(images([png(10, 6)]))
        assert not isinstance(results.wait(3)[2], Exception)


def test_an_end_that_raises_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("nobody can be told")

    decoder, results = DecodePool(ANY_NUMBER, 100, 1), Results()
    decoder.submit(images([png(7, 5)]), lambda: None, fail, fail)
    decoder.submit(images([png(7, 5)]), lambda: None, results.end, results.end)
    results.wait(1)
    decoder.close()
    assert "nobody can be told" in caplog.text
