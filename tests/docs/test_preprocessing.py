"""The guide's blocks give what it says, and its table has every step."""

from __future__ import annotations

import re
from pathlib import Path

from dnncore.preprocessing import STEPS, Preprocessing
from dnncore.train.config import parse_config

GUIDE = (Path(__file__).parents[2] / "docs/preprocessing.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_pipelines_are_sound_and_make_what_they_say() -> None:
    names: dict[str, Preprocessing] = {}
    exec(block("python"), names)
    assert names["preprocessing"].input_shape == (3, 224, 224)
    assert parse_config(block("toml")).preprocessing.build().input_shape == (3, 224, 224)


def test_the_table_has_every_step_in_its_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert rows == [(name, step.__name__) for name, step in STEPS.items()]
