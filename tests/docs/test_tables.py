"""The tables of algorithms say what the algorithms say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from algorithm_tables import BACKENDS, Backend, tables
from named_problems import EXAMPLES, kind

from dnncore.backend import Offer
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, Problem
from tests.cases import CASES

FORWARD = "Convolution, forward"


@cache
def pages() -> dict[str, str]:
    """The tables of each backend, by its title."""
    return {backend.title: tables((backend,)) for backend in BACKENDS}


def section(page: str, heading: str) -> str:
    found = re.search(rf"^### {re.escape(heading)}$(.*?)(?=^### |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


@cache
def support(page: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table of a section: name of the algorithm, then of the column."""
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(page, heading).split("workspace on")[0].splitlines()
        if line.startswith("| ") and line != "| "
    )
    return {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in rows}


def test_every_algorithm_of_every_kind_of_problem_has_a_row() -> None:
    for backend in BACKENDS:
        for case in CASES:
            names = {algorithm.name for algorithm in backend.algorithms(case.problem)}
            assert set(support(pages()[backend.title], kind(case.problem))) == names


def test_the_last_algorithm_takes_everything_that_is_legal() -> None:
    for page in pages().values():
        for heading in EXAMPLES:
            *_, last = support(page, heading).values()
            assert not [column for column, cell in last.items() if cell.startswith(("no<", "partly<"))], heading


def test_workspaces_are_those_of_the_examples() -> None:
    (name, problem), *_ = EXAMPLES[FORWARD]
    algorithms = BACKENDS[0].algorithms(problem)
    row = re.search(rf"^\| {name} \|(.*)\|$", section(pages()["CUDA"], FORWARD), re.MULTILINE)
    assert row
    for cell, algorithm in zip(row[1].split("|"), algorithms, strict=True):
        offer = algorithm.offer(problem, BACKENDS[0].figures)
        assert bool(cell.strip()) == isinstance(offer, Offer)
        assert isinstance(offer, str) or (offer.workspace_bytes == 0) == (cell.strip(" *") == "0 B")


@dataclass(frozen=True)
class Picky:
    """Takes 2-d convolutions of fp32 tensors only, and few groups; where it takes one, it wants 1.5 KiB."""

    name: str = "picky"

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        if problem.x.dtype is not DType.FLOAT32:
            return f"{problem.x.dtype.value} is not float32"
        if problem.convolution.spatial_ndim != 2:
            return f"{problem.convolution.spatial_ndim} dimensions"
        if problem.convolution.groups > 2:
            return f"{problem.convolution.groups} groups"
        return Offer(figures.launch_seconds, _prepare, workspace_bytes=1536, deterministic=False, math="fp32")


def _prepare() -> Any:
    raise AssertionError("a table needs no kernel")


def test_reasons_stand_below_what_is_refused() -> None:
    def only_picky(problem: Problem) -> tuple[Any, ...]:
        is_forward = isinstance(problem, ConvolutionProblem) and problem.direction is Direction.FORWARD
        return (Picky(),) if is_forward else BACKENDS[1].algorithms(problem)

    page = tables((Backend("fake", only_picky, BACKENDS[1].figures),))
    row = support(page, FORWARD)["picky"]
    assert (row["deterministic"], row["math"]) == ("no", "fp32")
    assert [row[column] for column in ("float32", "2-d", "NHWC", "groups", "dilation")] == ["yes"] * 5
    reasons: dict[str, str] = dict(re.findall(r"^(\d+)\. (.*)$", section(page, FORWARD), re.MULTILINE))

    def reason(column: str) -> str:
        number = re.fullmatch(r"(?:no|partly)<sup>(\d+)</sup>", row[column])
        assert number, row[column]
        return reasons[number[1]]

    assert reason("float64") == "float64 is not float32"
    assert reason("3-d") == "3 dimensions"
    assert reason("depthwise").endswith(" groups")
    assert "| r50-conv1 | **1.5 KiB** |" in page
