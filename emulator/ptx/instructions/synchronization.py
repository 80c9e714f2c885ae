"""Barriers, fences and atomics: PTX ISA 9.7.13.1 to 9.7.13.7; griddepcontrol is 9.7.13.13. mbarrier has a file of its own."""

from __future__ import annotations

from emulator.ptx.errors import PtxError
from emulator.ptx.memory import access, scope_of
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Name, Operand, Vector
from emulator.ptx.types import bytes_of

__all__ = ["RULES"]

# Values of C++ lambdas that atomics apply: `x` is what memory holds, `b` and `c` are the operands.
_OPERATIONS = {
    "add": "atomic_sum(T, at, x, b)", "min": "atomic_extreme<false>(x, b)", "max": "atomic_extreme<true>(x, b)",
    "inc": "atomic_inc(x, b)", "dec": "atomic_dec(x, b)", "and": "x & b", "or": "x | b", "xor": "x ^ b", "exch": "b",
    "cas": "x == b ? c : x",
}  # fmt: skip


def _atomic(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    operands = list(instruction.operands)
    to: Operand = operands.pop(0) if instruction.opcode.startswith("atom") else Name("_")
    address, *values = operands
    operation, kind, space = modifiers["op"], modifiers["type"], modifiers["space"]
    if modifiers.get("L2_cache_hint") == "true":
        values.pop()
    if len(values) != (2 if operation == "cas" else 1):
        raise PtxError(f"{instruction.opcode}: {len(values)} values")
    sources = values[0].items if isinstance(values[0], Vector) else (values[0],)
    results = to.items if isinstance(to, Vector) else (to,) * len(sources)
    size = bytes_of(kind)
    order = modifiers["order"] or "relaxed"
    announce = access("at", size * len(sources), "EMU_ATOMIC", space, instruction.location)
    before = f"release(T, at, {scope_of(modifiers)}, order::{order if order in ('release', 'acq_rel') else 'relaxed'});"
    after = f"acquire(T, at, {scope_of(modifiers)}, order::{order if order in ('acquire', 'acq_rel') else 'relaxed'});"
    third = f" const {kind} c = {writer.read(values[1], kind)};" if operation == "cas" else ""
    steps = []
    for i, (source, result) in enumerate(zip(sources, results, strict=True)):
        at = f"at + {i * size}" if i else "at"
        apply = f"atomic<{kind}>({at}, [&]({kind} x) {{ return {kind}({_OPERATIONS[operation]}); }})"
        steps.append(f"{{ const {kind} b = {writer.read(source, kind)};{third} {writer.write(result, kind, apply)} }}")
    wait = " emu_yield(T);" if instruction.opcode.startswith("atom") else ""
    return f"{{ char* at = {writer.pointer(address, space)}; {announce} {before} {' '.join(steps)} {after}{wait} }}"


def _atomic_rows(name: str, section: str, operations: str) -> tuple[Rule, ...]:
    """atom and red take the same operations, but that red cannot exchange."""
    prefix = (
        ".order?=relaxed|acquire|release|acq_rel .scope?=cta|cluster|gpu|sys "
        ".space?=global|shared|shared::cta|shared::cluster"
    )
    global_only = prefix.rpartition(" ")[0] + " .space?=global"
    hint = ".L2::cache_hint?"
    halves = "f16|f16x2|bf16|bf16x2"

    def row(title: str, where: str, what: str) -> Rule:
        return Rule(name, section, title, f"{where} {what}", build=_atomic)

    rows = [
        row("atomic arithmetic", prefix, f".op=add {hint} .type=u32|s32|u64|f32|f64"),
        row("atomic arithmetic", prefix, f".op=min|max {hint} .type=u32|s32|u64|s64"),
        row("atomic counter", prefix, f".op=inc|dec {hint} .type=u32"),
        row("atomic bits", prefix, f".op=and|or|xor {hint} .type=b32|b64"),
        row("atomic addition of halves", prefix, f".op=add .noftz {hint} .type={halves}"),
        row("atomic addition of vectors", global_only, f".op=add {hint} .vector=v2|v4 .type=f32"),
        row("atomic addition of vectors", global_only, f".vector=v2|v4 {hint} .type=f32 .op=add"),
        row(
            "atomics of vectors of halves",
            global_only,
            f".op=add|min|max .noftz {hint} .vector=v2|v4|v8 .type={halves}",
        ),
        row(
            "atomics of vectors of halves",
            global_only,
            f".vector=v2|v4|v8 {hint} .type={halves} .op=add|min|max .noftz",
        ),
    ]
    if operations == "exchange":
        rows += [
            row("atomic exchange", prefix, f".op=exch {hint} .type=b32|b64|b128"),
            row("compare and swap", prefix, f".op=cas {hint} .type=b16|b32|b64|b128"),
        ]
    return tuple(rows)


RULES = (
    Rule("barrier", "9.7.13.1", "barrier of a block", ".cta? .sync .aligned?", "a:u32 b:u32?=0",
         effect="emu_bar_sync(T, {a}, {b}, {aligned}, {L})"),
    Rule("barrier", "9.7.13.1", "arrival at a barrier", ".cta? .arrive .aligned?", "a:u32 b:u32",
         effect="emu_bar_arrive(T, {a}, {b}, {aligned}, {L})"),
    Rule("barrier", "9.7.13.1", "barrier, number of true predicates", ".cta? .red .popc .aligned? .u32",
         "d:u32 a:u32 b:u32?=0 c:pred", "emu_bar_red(T, {a}, {b}, EMU_ADD, {c}, {aligned}, {L})"),
    Rule("barrier", "9.7.13.1", "barrier, and/or of predicates", ".cta? .red .op=and|or .aligned? .pred",
         "p a:u32 b:u32?=0 c:pred", effect="p = emu_bar_red(T, {a}, {b}, EMU_{OP}, {c}, {aligned}, {L})"),
    Rule("bar", "9.7.13.1", "aligned barrier of a block", ".cta? .sync", "a:u32 b:u32?=0",
         effect="emu_bar_sync(T, {a}, {b}, true, {L})"),
    Rule("bar", "9.7.13.1", "aligned arrival at a barrier", ".cta? .arrive", "a:u32 b:u32",
         effect="emu_bar_arrive(T, {a}, {b}, true, {L})"),
    Rule("bar", "9.7.13.1", "aligned barrier, number of true predicates", ".cta? .red .popc .u32",
         "d:u32 a:u32 b:u32?=0 c:pred", "emu_bar_red(T, {a}, {b}, EMU_ADD, {c}, true, {L})"),
    Rule("bar", "9.7.13.1", "aligned barrier, and/or of predicates", ".cta? .red .op=and|or .pred",
         "p a:u32 b:u32?=0 c:pred", effect="p = emu_bar_red(T, {a}, {b}, EMU_{OP}, {c}, true, {L})"),
    Rule("bar.warp.sync", "9.7.13.2", "barrier of lanes", "", "mask:u32", effect="emu_syncwarp(T, {mask}, {L})"),
    Rule("membar", "9.7.13.4", "fence", ".scope=cta|gl|sys", "", effect="fence(T, order::sc, scope::{scope})"),
    Rule("fence", "9.7.13.4", "fence", ".order?acq_rel=sc|acq_rel|acquire|release .scope=cta|cluster|gpu|sys", "",
         effect="fence(T, order::{order}, scope::{scope})"),
    Rule("fence.acquire.sync_restrict::shared::cluster.cluster", "9.7.13.4", "fence of the cluster's shared memory",
         effect="fence(T, order::acquire, scope::cluster)"),
    Rule("fence.release.sync_restrict::shared::cta.cluster", "9.7.13.4", "fence of the block's shared memory",
         effect="fence(T, order::release, scope::cluster)"),
    Rule("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster", "9.7.13.4",
         "fence of the cluster's shared memory between proxies", effect="fence(T, order::acquire, scope::cluster)"),
    Rule("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster", "9.7.13.4",
         "fence of the block's shared memory between proxies", effect="fence(T, order::release, scope::cluster)"),
    Rule("fence.mbarrier_init.release.cluster", "9.7.13.4", "fence behind mbarrier.init",
         effect="fence(T, order::release, scope::cluster)"),
    Rule("fence.proxy.async", "9.7.13.4", "fence to the asynchronous proxy",
         ".space?=global|shared::cta|shared::cluster", "", effect="fence_proxy_async(T, {L})"),
    Rule("fence.proxy.alias", "9.7.13.4", "fence to aliases of addresses", effect="(void)0"),
    Rule("membar.proxy.alias", "9.7.13.4", "fence to aliases of addresses", effect="(void)0"),
    Rule("fence.proxy.tensormap::generic.release", "9.7.13.4", "fence behind writes of a tensor map",
         ".scope=cta|cluster|gpu|sys", "", effect="fence(T, order::release, scope::{scope})"),
    Rule("fence.proxy.tensormap::generic.acquire", "9.7.13.4", "fence before uses of a tensor map",
         ".scope=cta|cluster|gpu|sys", "[a:] size:u32", effect="fence(T, order::acquire, scope::{scope})"),
    *_atomic_rows("atom", "9.7.13.5", "exchange"),
    *_atomic_rows("red", "9.7.13.6", ""),
    Rule("griddepcontrol.launch_dependents", "9.7.13.13", "lets the next grid begin", effect="emu_griddep_launch(T)"),
    Rule("griddepcontrol.wait", "9.7.13.13", "waits for the grid before", effect="emu_griddep_wait(T)"),
)  # fmt: skip
