"""The emulator against the oracles of the conformance checks and against what an H200 said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from emulator.conformance import coverage, exact, families, report
from emulator.conformance.checks import BITS, Check, Comparison, canonical
from emulator.conformance.runner import Runner
from emulator.conformance.scalar import opcodes
from emulator.conformance.values import bits, operands

H200 = Path(families.__file__).parents[1] / "results" / "h200.json"
emulated = pytest.mark.skipif(not os.environ.get("DNN_EMU_LIB"), reason="needs the emulated driver: DNN_EMU_LIB")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled modules are kept for all families."""
    cache = os.environ.get("DNNCORE_CACHE_DIR")
    return Path(cache) / "conformance" if cache else tmp_path_factory.mktemp("conformance")


@emulated
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", families.NAMES)
def test_a_family_agrees(name: str, build: Path) -> None:
    records = Runner(build, H200).run(name)
    lines: list[str] = []
    report.print_failures({name: records}, lines.append)
    assert records, "no checks ran"
    assert not lines, "\n".join(lines)


def test_an_h200_has_answered_every_check_and_agreed_with_its_oracle() -> None:
    answers = json.loads(H200.read_text())
    asked = {(name, check.name) for name in families.NAMES for check in families.load(name).checks}
    statuses = {
        (name, check): each["status"] for name, all_ in answers["families"].items() for check, each in all_.items()
    }
    assert asked - statuses.keys() == set(), "run `make conformance` on an H200"
    # The one that needs two devices passed on a host that has them, with one GPU it is skipped.
    assert {key for key in asked if statuses[key] not in ("passed", "recorded")} <= {("driver", "peer copy")}


def test_a_report_has_a_line_for_each_check() -> None:
    text = H200.read_text()
    answers = json.loads(text)
    assert report.text(answers) == text
    assert json.loads(report.text(answers | {"families": {}}))["families"] == {}
    assert sum('"status"' in line for line in text.splitlines()) == sum(answers["summary"].values())


def test_every_instruction_of_the_emulator_has_a_check() -> None:
    assert coverage.uncovered() == set()


@pytest.mark.parametrize("name", families.NAMES)
def test_names_in_a_family_are_unique(name: str) -> None:
    family = families.load(name)
    family.validate()
    assert family.checks


def test_inputs_are_the_same_everywhere() -> None:
    # A report of another machine, with another NumPy, is about the same inputs.
    assert bits("a name", "u64", 3).tolist() == [0x114D849AB4C0126A, 0x6E7AE721AD165B92, 0xACF79B8083483E48]
    assert np.array_equal(bits("a", "u32", 100), bits("a", "u32", 200)[:100])


def test_exact_rounding_is_that_of_numpy() -> None:
    words = [int(x) for x in operands("rounding", ("f64",), 256)[0]]
    with np.errstate(over="ignore", invalid="ignore"):
        halves = np.array(words, np.uint64).view(np.float64).astype(np.float16).view(np.uint16)
    mine = np.array([exact.F16.encode(exact.F64.decode(word)) for word in words], np.uint16)
    assert np.array_equal(canonical("f16", halves), canonical("f16", mine))


@pytest.mark.parametrize(
    ("rounding", "bits_of_a_third"), [("rn", 0x3EAAAAAB), ("rz", 0x3EAAAAAA), ("rm", 0x3EAAAAAA), ("rp", 0x3EAAAAAB)]
)
def test_directed_rounding(rounding: str, bits_of_a_third: int) -> None:
    one, three = exact.F32.decode(0x3F800000), exact.F32.decode(0x40400000)
    assert exact.F32.encode(exact.divide(one, three), rounding) == bits_of_a_third


def test_a_nan_equals_a_nan_and_nothing_else() -> None:
    nans, one = np.array([0x7FC00000, 0xFFFFFFFF], np.uint32), np.array([0x7FC00000, 0x3F800000], np.uint32)
    assert not len(BITS.differing("f32", nans, nans[::-1].copy()))
    assert BITS.differing("f32", nans, one).tolist() == [1]


def test_a_tolerance_is_in_units_of_the_format() -> None:
    one, next_, far = (np.array([0x3F800000 + step], np.uint32) for step in (0, 2, 3))
    loose = Comparison(ulp=2, reason="a test")
    assert not len(loose.differing("f32", next_, one))
    assert loose.differing("f32", far, one).tolist() == [0]
    assert not len(loose.differing("f32", far, one, slack=2))


def test_opcodes_are_read_from_ptx() -> None:
    code = "{ .reg .pred p; @!p add.s32 d, a, b; st.shared::cta.b32 [x], d;\n ret; }"
    assert opcodes(code) == ("add.s32", "st.shared::cta.b32", "ret")


def _sum_check() -> Check:
    return Check(
        "sum",
        ("add.u32",),
        lambda _bench: np.arange(4, dtype=np.uint32),
        expected=lambda: np.arange(4, dtype=np.uint32),
    )


def test_a_device_that_differs_from_the_oracle_is_what_counts() -> None:
    """The report of a GPU overrules the oracle, in both directions."""
    check, other = _sum_check(), np.array([0, 1, 2, 9], np.uint32)
    recorded = report.judge("f", check, other, None)
    assert recorded["status"] == report.FAILED
    assert "0x00000009 (9), expected 0x00000003 (3)" in recorded["message"]
    reference = report.Reference("a GPU", {("f", "sum"): recorded})
    assert report.judge("f", check, other, reference)["status"] == report.PASSED
    wrong = report.judge("f", check, np.arange(4, dtype=np.uint32), reference)
    assert wrong["status"] == report.FAILED
    assert "a GPU 0x00000009" in wrong["message"]
