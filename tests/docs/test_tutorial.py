"""The tutorial's blocks, run as they stand there; and again on a CUDA device, with a small problem."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.conftest import DEVICES

TUTORIAL = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
DEVICE, SIZES = 'Handle("cpu")', "N, C, H, K, R = 2, 6, 221, 8, 7"


def on_cuda(page: str, device: str) -> str:
    """The page as its comments say, on another device, but with the emulator's patience in mind."""
    assert page.count(DEVICE) == page.count(SIZES) == 1
    return page.replace(DEVICE, f'Handle("{device}")').replace(SIZES, "N, C, H, K, R = 2, 3, 15, 4, 7")


@pytest.mark.parametrize("device", DEVICES)
def test_every_block_gives_what_the_page_says(device: str) -> None:
    page, options = TUTORIAL, 0
    if device != "cpu":
        page, options = on_cuda(TUTORIAL, device), doctest.IGNORE_EXCEPTION_DETAIL  # messages name shapes and device
    blocks = re.findall(r"^```pycon\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, f"tutorial on {device}", "docs/tutorial.md", 0)
    for example in test.examples:
        if device != "cpu" and '# of "cpu"' in example.source:
            example.want = "...\n"
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | options).run(test)
    assert results.failed == 0
    assert results.attempted > 40
