"""The site builds without a warning, and everything public is on it, with a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import dnnclient
import pytest
from named_problems import kind
from sphinx.util.inventory import InventoryFile

import dnncore
from dnncore import problems
from tests.cases import CASES

ROOT = Path(__file__).parents[2]

BACKENDS = ("dnncore.cuda.", "dnncore.reference.")
"""They are reached through `devices` alone."""

GATHERED = (
    "dnncore.ops.",
    "dnncore.problems.",
    "dnncore.preprocessing.",
    "dnncore.descriptors.",
    "dnncore.torch.",
    "dnncore.functional.",
    "dnncore.cli.",
    "dnncore.importers.",
    "dnncore.nn.operators.",
    "dnncore.nn.passes.",
    "dnncore.nn.zoo.",
    "dnnclient.",
)
"""Their packages say what of them is public."""


pytestmark = pytest.mark.timeout(400)  # the first of these builds the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command of `make docs`, elsewhere, without the theme: its navigation takes a quarter of the time."""
    made = subprocess.run(
        ["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    (line,) = (line for line in made.splitlines() if "-m sphinx" in line)
    out: Path = tmp_path_factory.mktemp("docs")
    _, *words = shlex.split(line.replace(".build", str(out)))
    assert words[-1] == str(out / "docs")
    command = [sys.executable, *words, "-D", "html_theme=basic"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=360, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return out / "docs"


@pytest.fixture(scope="module")
def documented(site: Path) -> set[str]:
    """Full name of everything that has an entry in the reference."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for role, entries in inventory.items() if role.startswith("py:") for name in entries}


@cache
def modules() -> tuple[ModuleType, ...]:
    """Every module of the library and the client, imported."""
    names = [
        name
        for package in (dnncore, dnnclient)
        for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not f"{name}.".startswith(BACKENDS) and not name.endswith("__main__")
    ]
    return dnncore, dnnclient, *map(importlib.import_module, names)


def public_names() -> Iterator[tuple[ModuleType, str, object]]:
    """What each public module lists, with what it stands for."""
    for module in modules():
        if not module.__name__.startswith(GATHERED):
            yield from ((module, name, getattr(module, name)) for name in getattr(module, "__all__", ()))


def same_object_elsewhere(name: str, thing: object, documented: set[str]) -> bool:
    """Whether a package that gathers its modules' names has the entry, under the same last name."""
    for other in documented:
        path, _, last = other.rpartition(".")
        if last == name and getattr(sys.modules.get(path), name, None) is thing:
            return True
    return False


def test_every_public_name_is_on_a_page(documented: set[str]) -> None:
    missing = [
        full_name
        for module, name, thing in public_names()
        if (full_name := f"{module.__name__}.{name}") not in documented
        and not same_object_elsewhere(name, thing, documented)
    ]
    assert not missing, "give them a docstring, and their module a place on a page under docs/api"


def described_constants(module: ModuleType) -> set[str]:
    """Constants of a module that a string follows."""
    body = ast.parse(inspect.getsource(module)).body
    found = set()
    for statement, after in pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_public_name_has_a_docstring() -> None:
    constants = set().union(*map(described_constants, modules()))
    missing = []
    for module, name, thing in public_names():
        has_own = inspect.isroutine(thing) or inspect.isclass(thing) or inspect.ismodule(thing)
        if not (inspect.getdoc(thing) if has_own else name in constants):
            missing.append(f"{module.__name__}.{name}")
    assert not missing


def test_every_kind_of_problem_has_a_table_for_each_backend(site: Path) -> None:
    page = (site / "algorithms.html").read_text()
    kinds: dict[type, str] = {type(case.problem): kind(case.problem) for case in CASES}
    for problem in (getattr(problems, name) for name in problems.__all__):
        if inspect.isclass(problem) and problem.__name__.endswith("Problem") and problem is not problems.Problem:
            assert page.count(f"<h3>{kinds.get(problem)}<") == 2, problem


def test_the_older_pages_are_on_it(site: Path) -> None:
    for page in (ROOT / "docs").glob("**/*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()
