from __future__ import annotations

import tracemalloc
from pathlib import Path

from dnncore.importers.files import read_bounded


def test_a_small_file_takes_no_more_room_than_it_has_bytes(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(range(100)))
    tracemalloc.start()
    assert read_bounded(path, (2 << 30) - 1) == bytes(range(100))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_file_that_is_too_large_shows_by_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(100))
    assert [len(read_bounded(path, most)) for most in (99, 100, 101)] == [100, 100, 100]
    assert len(read_bounded(path, 10)) == 11
