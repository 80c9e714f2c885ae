"""What is compiled: a kernel, the source it comes from, and the architectures it exists for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A kernel and what it is compiled from. Immutable.

    Args:
        source: CUDA C++, a few generated lines that include a header of `include/`. Kernels that are used together share a source,
            and with it a run of the compiler and a loaded module.
        entry: Name of one of the `extern "C" __global__` functions in it.
        architectures: Those it exists for, as nvcc names them ("sm_90a"); empty for every one that the library supports. All units
            of a source name the same ones.
    """

    source: str
    entry: str
    architectures: tuple[str, ...] = ()

    def why_not_on(self, architecture: str) -> str | None:
        """None when the unit exists for an architecture, else the reason why not."""
        if not self.architectures or architecture in self.architectures:
            return None
        return f"{self.entry} is a kernel for {', '.join(self.architectures)}, not for {architecture}"
