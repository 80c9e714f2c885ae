"""The guide's blocks give what it says, and its table has every step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncore.preprocessing import STEPS
from dnncore.train.config import parse_config
from tests.unit.image_files import encode_pixels

GUIDE = (Path(__file__).parents[2] / "docs/preprocessing.md").read_text()


def code(language: str) -> str:
    """Every block of it, one after the other."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE))


def test_the_pipelines_are_sound_and_make_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(code("python"), names)
    assert names["preprocessing"].input_shape == (3, 224, 224)
    expected = [names["preprocessing"].from_bytes(encode_pixels(image)) for image in names["images"]]
    assert capsys.readouterr().out == f"{np.std(expected)!s}\n"
    assert parse_config(code("toml")).preprocessing.build().input_shape == (3, 224, 224)


def test_the_table_has_every_step_in_its_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert rows == [(name, step.__name__) for name, step in STEPS.items()]
