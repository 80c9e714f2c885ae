"""Instructions on registers: a table row becomes a kernel of one instruction and a check of it over many inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import BITS, Check, Comparison, Family
from emulator.conformance.exact import FORMATS
from emulator.conformance.sources import Library, ptx_library
from emulator.conformance.values import WIDTHS, WORDS, operands

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

COUNT = 256
BLOCK = 128
_NOT_INSTRUCTIONS = {"p", "q"}


def register(kind: str) -> str:
    """The register type of a value: b16 up to 16 bits, floats as themselves, else bits."""
    if kind in ("f32", "f64"):
        return kind
    return f"b{max(16, WIDTHS[kind])}"


@dataclass(frozen=True)
class Op:
    """A row of a table.

    Attributes:
        text: The instruction's opcode with its modifiers, or a few statements with $d, $a, $b, $c; p and q are predicates,
            t0 to t3 32-bit and w0 to w1 64-bit registers.
        result: Type of $d.
        kinds: Types of the operands.
        oracle: From bit patterns of the operands to the one of the result; None: the GPU says.
        warp: The oracle takes and gives lists of a warp's 32 values.
        inputs: Other operands than the usual mixture.
    """

    text: str
    result: str
    kinds: tuple[str, ...]
    oracle: Callable[..., int] | Callable[..., list[int]] | None = None
    name: str = ""
    comparison: Comparison = BITS
    warp: bool = False
    inputs: Callable[[str], list[Array]] | None = None

    @property
    def title(self) -> str:
        """The check's name."""
        return self.name or self.text.split(";")[0].strip().split(" ")[0]

    @property
    def statements(self) -> str:
        """The code with $d, $a, ..."""
        if "$" in self.text:
            return self.text
        return f"{self.text} $d, " + ", ".join("$" + letter for letter in "abc"[: len(self.kinds)]) + ";"

    def covers(self) -> tuple[str, ...]:
        """The opcodes in the code."""
        return opcodes(self.statements)

    def values(self) -> list[Array]:
        """The operands."""
        if self.inputs is not None:
            return self.inputs(self.title)
        return operands(self.title, self.kinds, COUNT)


def opcodes(code: str) -> tuple[str, ...]:
    """The opcodes of PTX statements, in order, each once."""
    found: dict[str, None] = {}
    for part in re.split(r"[;{}\n]", code):
        match = re.match(r"\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)(?:\s|$)", part)
        if match and match[1] not in _NOT_INSTRUCTIONS:
            found[match[1]] = None
    return tuple(found)


def kernel_name(title: str) -> str:
    """An identifier for a check's name."""
    return "op_" + re.sub(r"\W+", "_", title)


def entry(op: Op) -> str:
    """The kernel: one element per thread."""
    loads, registers = [], []
    for position, kind in enumerate(op.kinds):
        letter, size = "abc"[position], WIDTHS[kind] // 8
        name = "ra" if kind == "pred" else letter
        registers.append(f".reg .{register(kind)} {name}{position if kind == 'pred' else ''};")
        target = f"{name}{position}" if kind == "pred" else letter
        loads.append(
            f"  ld.param.u64 address, [p{position}];\n  mad.wide.u32 address, index, {size}, address;\n"
            f"  ld.global.{'u8' if size == 1 else f'b{size * 8}' if kind not in ('f32', 'f64') else kind} {target}, [address];"
        )
        if kind == "pred":
            registers.append(f".reg .pred {letter};")
            loads.append(f"  setp.ne.u16 {letter}, {target}, 0;")
    size = WIDTHS[op.result] // 8
    store = "u8" if size == 1 else op.result if op.result in ("f32", "f64") else f"b{size * 8}"
    code = Template(op.statements).substitute(d="d", a="a", b="b", c="c")
    parameters = ", ".join(f".param .u64 p{position}" for position in range(len(op.kinds) + 1))
    return f""".visible .entry {kernel_name(op.title)}({parameters})
{{
  .reg .b32 index, block, t0, t1, t2, t3; .reg .b64 address, w0, w1; .reg .pred p, q; .reg .{register(op.result)} d;
  {" ".join(registers)}
  mov.u32 index, %ctaid.x;
  mov.u32 block, %tid.x;
  mad.lo.u32 index, index, {BLOCK}, block;
{chr(10).join(loads)}
  {code}
  ld.param.u64 address, [p{len(op.kinds)}];
  mad.wide.u32 address, index, {size}, address;
  st.global.{store} [address], d;
  ret;
}}
"""


@dataclass
class Table:
    """Rows and their one library."""

    family: Family
    library: Library = field(default_factory=ptx_library)

    def add(self, op: Op) -> None:
        """Adds a row's kernel and check."""
        self.library.add(kernel_name(op.title), entry(op))
        self.family.checks.append(
            Check(
                name=op.title,
                covers=op.covers(),
                run=lambda bench: self._run(op, bench),
                kind=op.result,
                expected=(lambda: evaluate(op)) if op.oracle else None,
                comparison=op.comparison,
                inputs=lambda index: describe(op, index),
            )
        )

    def _run(self, op: Op, bench: Bench) -> Array:
        values = op.values()
        buffers = [bench.upload(value) for value in values]
        out = bench.output(len(values[0]), WORDS[WIDTHS[op.result]])
        grid = len(values[0]) // BLOCK
        bench.launch(self.library, kernel_name(op.title), grid, BLOCK, [*buffers, out])
        return bench.read(out, WORDS[WIDTHS[op.result]])


def evaluate(op: Op) -> Array:
    """The oracle's answers."""
    assert op.oracle is not None
    columns = [[int(x) for x in value] for value in op.values()]
    mask = (1 << WIDTHS[op.result]) - 1
    found: list[int] = []
    if op.warp:
        for start in range(0, len(columns[0]), 32):
            answers = op.oracle(*(column[start : start + 32] for column in columns))
            assert isinstance(answers, list)
            found.extend(answers)
    else:
        for row in zip(*columns, strict=True):
            answer = op.oracle(*row)
            assert isinstance(answer, int)
            found.append(answer)
    return np.array([x & mask for x in found], dtype=WORDS[WIDTHS[op.result]])


def describe(op: Op, index: int) -> str:
    """The operands of an element, in hex and, for floats, decimal."""
    parts = []
    for letter, kind, value in zip("abc", op.kinds, op.values(), strict=False):
        parts.append(f"{letter}={show(kind, int(value[index]))}")
    return " ".join(parts)


def show(kind: str, bits: int) -> str:
    """A value in hex and decimal."""
    text = f"0x{bits:0{WIDTHS[kind] // 4}x}"
    if kind in FORMATS and kind != "tf32":
        number = FORMATS[kind].decode(bits)
        sign = "-" if number.negative else ""
        if number.magnitude is None:
            return f"{text} (nan)"
        return f"{text} ({sign}inf)" if number.infinite else f"{text} ({sign}{float(abs(number.value)):.9g})"
    if kind.startswith("s") and bits >> (WIDTHS[kind] - 1):
        bits -= 1 << WIDTHS[kind]
    return f"{text} ({bits})" if kind[0] in "us" else text
