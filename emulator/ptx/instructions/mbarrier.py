"""mbarrier objects: PTX ISA 9.7.13.15."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

_CTA = ".space?=shared|shared::cta"
_ANY = ".space?=shared|shared::cta|shared::cluster"
_SCOPE = ".scope?cta=cta|cluster"
_RELEASE = f".order?release=release|relaxed {_SCOPE}"
_ACQUIRE = f".order?acquire=acquire|relaxed {_SCOPE}"


def _arrive(name: str, section: str, drop: str) -> tuple[Rule, ...]:
    """mbarrier.arrive and arrive_drop. The old .noComplete promises that the phase does not end here, which needs no other code."""
    end = f"{drop}, order::{{order}}, scope::{{scope}}, {{L}})"
    return (
        Rule(f"mbarrier.{name}", section, "arrival", f"{_RELEASE} {_ANY} .b64", "d:b64 [m:space#] n:u32?=1",
             f"emu_mbarrier_arrive(T, {{m}}, {{n}}, 0, {end}"),
        Rule(f"mbarrier.{name}.expect_tx", section, "arrival that expects bytes", f"{_RELEASE} {_ANY} .b64",
             "d:b64 [m:space#] n:u32", f"emu_mbarrier_arrive(T, {{m}}, 1, {{n}}, {end}"),
        Rule(f"mbarrier.{name}.noComplete", section, "arrival before the last one", f"{_RELEASE} {_CTA} .b64",
             "d:b64 [m:space#] n:u32", f"emu_mbarrier_arrive(T, {{m}}, {{n}}, 0, {end}"),
    )  # fmt: skip


def _wait(name: str, blocking: str) -> tuple[Rule, ...]:
    """test_wait and try_wait, by state and by parity. A test that fails lets other threads run; a try waits as long as it takes."""
    rest = "" if blocking == "true" else "; if (!p) emu_yield(T)"
    hint = "" if blocking == "false" else " hint:u32?"
    end = f"{blocking}, order::{{order}}, {{L}}){rest}"
    return (
        Rule(f"mbarrier.{name}", "9.7.13.15.16", "whether a phase is over", f"{_ACQUIRE} {_CTA} .b64",
             f"p [m:space#] state:b64{hint}", effect=f"p = emu_mbarrier_test(T, {{m}}, {{state}}, {end}"),
        Rule(f"mbarrier.{name}.parity", "9.7.13.15.16", "whether the phase of a parity is over", f"{_ACQUIRE} {_CTA} .b64",
             f"p [m:space#] parity:u32{hint}", effect=f"p = emu_mbarrier_test_parity(T, {{m}}, {{parity}}, {end}"),
    )  # fmt: skip


RULES = (
    Rule("mbarrier.init", "9.7.13.15.9", "creation", f"{_CTA} .b64", "[m:space#] n:u32",
         effect="emu_mbarrier_init(T, {m}, {n}, {L})"),
    Rule("mbarrier.inval", "9.7.13.15.10", "end", f"{_CTA} .b64", "[m:space#]", effect="emu_mbarrier_inval(T, {m}, {L})"),
    Rule("mbarrier.expect_tx", "9.7.13.15.11", "more bytes to expect", f".relaxed? {_SCOPE} {_ANY} .b64",
         "[m:space#] n:u32", effect="emu_mbarrier_expect(T, {m}, {n}, {L})"),
    Rule("mbarrier.complete_tx", "9.7.13.15.12", "bytes that have come", f".relaxed? {_SCOPE} {_ANY} .b64",
         "[m:space#] n:u32", effect="emu_mbarrier_complete(T, {m}, {n}, {L})"),
    *_arrive("arrive", "9.7.13.15.13", "false"),
    *_arrive("arrive_drop", "9.7.13.15.14", "true"),
    Rule("cp.async.mbarrier.arrive", "9.7.13.15.15", "arrival when this thread's cp.async are done",
         f".noinc? {_CTA} .b64", "[m:space#]", effect="emu_cp_async_mbarrier_arrive(T, {m}, {noinc}, {L})"),
    *_wait("test_wait", "false"),
    *_wait("try_wait", "true"),
    Rule("mbarrier.pending_count", "9.7.13.15.17", "arrivals that a state waits for", ".b64", "d:u32 state:b64",
         "emu_mbarrier_pending({state})"),
)  # fmt: skip
