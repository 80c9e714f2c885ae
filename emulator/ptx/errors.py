"""What can be wrong with PTX."""

from __future__ import annotations

__all__ = ["NotEmulatedError", "PtxError", "PtxSyntaxError"]


class PtxError(Exception):
    """Base of this package's errors."""


class PtxSyntaxError(PtxError):
    """The text is not PTX as we know it; the message names the line."""


class NotEmulatedError(PtxError):
    """PTX that is understood as far as its opcode or directive, which the message names, and has no meaning here."""
