"""What every instruction means: a table of rows, one file a chapter of PTX ISA 9.7."""

from __future__ import annotations

from functools import cache

from emulator.ptx.errors import NotEmulatedError
from emulator.ptx.instructions import (
    asynchronous,
    cluster,
    comparison,
    control,
    conversion,
    data_movement,
    extended,
    floating,
    half,
    integer,
    logic,
    matrix,
    mbarrier,
    miscellaneous,
    synchronization,
    tensor,
    warp,
    wgmma,
)
from emulator.ptx.rule import Rule

__all__ = ["TABLE", "find", "rows"]

TABLE: tuple[Rule, ...] = (
    *integer.RULES,
    *extended.RULES,
    *floating.RULES,
    *half.RULES,
    *comparison.RULES,
    *logic.RULES,
    *data_movement.RULES,
    *conversion.RULES,
    *asynchronous.RULES,
    *tensor.RULES,
    *control.RULES,
    *synchronization.RULES,
    *mbarrier.RULES,
    *warp.RULES,
    *cluster.RULES,
    *matrix.RULES,
    *wgmma.RULES,
    *miscellaneous.RULES,
)

_BY_STEM: dict[str, list[Rule]] = {}
for _rule in TABLE:
    _BY_STEM.setdefault(_rule.opcode.partition(".")[0], []).append(_rule)


def rows(stem: str) -> tuple[Rule, ...]:
    """The rows whose opcode begins with a word: "add" has those of integers, floats and halves."""
    return tuple(_BY_STEM.get(stem, ()))


@cache
def find(opcode: str) -> tuple[Rule, dict[str, str]]:
    """The row that covers an opcode, and what its modifiers say.

    Raises:
        NotEmulatedError: no row does; the message is the opcode.
    """
    for rule in rows(opcode.partition(".")[0]):
        modifiers = rule.match(opcode)
        if modifiers is not None:
            return rule, modifiers
    raise NotEmulatedError(opcode)
