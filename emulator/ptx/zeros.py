"""Which registers of a function begin as zero.

A register that is read before it is written has no value in PTX. Here it is zero, so that a kernel does the same each time. Zeroing
all of them would be a tenth of what g++ has to compile, and each thread would begin with thousands of stores.
"""

from __future__ import annotations

__all__ = ["Zeros"]


class Zeros:
    """Finds, instruction by instruction in the order of the text, the registers that could be read first. Owned by one writer.

    Control enters a stretch between two labels at its beginning alone. So a register that one stretch alone names, and names first
    as the result of an instruction without a guard, is written before it is read.
    """

    def __init__(self) -> None:
        self._stretch = 0
        self._written_in: dict[str, int] = {}
        self._zero: set[str] = set()
        self._reads: set[str] = set()
        self._writes: set[str] = set()

    def read(self, register: str) -> None:
        """The instruction at hand uses its value, or its address."""
        self._reads.add(register)

    def write(self, register: str) -> None:
        """The instruction at hand replaces its value, if it is carried out."""
        self._writes.add(register)

    def end_instruction(self, *, guarded: bool) -> None:
        """What comes next is another instruction."""
        for register in self._writes - self._reads:
            if not guarded:
                self._written_in.setdefault(register, self._stretch)
        for register in self._reads | self._writes:
            if self._written_in.get(register) != self._stretch:
                self._zero.add(register)
        self._reads.clear()
        self._writes.clear()

    def end_stretch(self) -> None:
        """What comes next is a label."""
        self._stretch += 1

    def __contains__(self, register: str) -> bool:
        """Whether it must begin as zero."""
        return register in self._zero
