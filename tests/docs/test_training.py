"""What the page on training says can be typed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dnncore.train.config import DataConfig, ScheduleConfig, parse_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/training.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_the_configurations_of_the_page_are_legal(text: str) -> None:
    if "of_net" in text and "path" not in text:
        text = f"net = {{ path = 'a' }}\n{text}"
    assert parse_config(text).to_dict().keys() >= tomllib.loads(text).keys()


def test_the_page_names_every_kind_of_data_and_of_schedule() -> None:
    for config in (DataConfig, ScheduleConfig):
        hint = config.__dataclass_fields__["kind"].type
        assert all(f"`{kind}`" in PAGE for kind in re.findall(r'"(\w+)"', str(hint)))
