"""What the page on training says can be typed."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from dnncore.nn.operator import Operator
from dnncore.nn.operators import OPERATORS
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


def test_the_page_says_of_every_operator_whether_it_has_a_gradient() -> None:
    (section,) = re.findall(r"## What can be trained\n(.*?)\n## ", PAGE, re.DOTALL)
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    said = {kind: not text.strip().startswith("none") for kinds, text in rows for kind in re.findall(r"`(\w+)`", kinds)}
    forward = {one.kind: one for one in OPERATORS.values() if "backward" not in one.kind or said.get(one.kind)}
    sums = {"channel_sum", "sum_to"}  # of gradients themselves, as what is called backward
    assert said.keys() == forward.keys() - sums
    for kind, has in said.items():
        rule = forward[kind].gradient
        assert has == (rule is not Operator.gradient and not _only_raises(rule) and kind not in ("ones", "zeros")), kind


def _only_raises(rule: Callable[..., object]) -> bool:
    body = inspect.getsource(rule).split(":\n", 1)[1]
    return body.strip().startswith("raise ")
