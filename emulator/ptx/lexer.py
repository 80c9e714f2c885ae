"""PTX text to tokens (PTX ISA 4.3 to 4.5)."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from emulator.ptx.errors import PtxSyntaxError

__all__ = ["Lexer"]

_KINDS = r"""
    (?P<sign>[{}\[\]()<>,;|@!+\-=:~*/&^?])
  | (?P<word>[%.]?[A-Za-z_$%][\w$%]*(?:(?:\.|::)[\w$]+)*)
  | (?P<float>0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<end>\Z)
"""
_KIND = re.compile(_KINDS, re.VERBOSE | re.DOTALL)
_ALTERNATIVES = re.sub(r"\?P<\w+>", "?:", _KINDS)
_TOKEN = re.compile(rf"(?:\s+|//[^\n]*|/\*.*?\*/)*({_ALTERNATIVES} | .)", re.VERBOSE | re.DOTALL)
"""A token, or the character that begins none, behind what is between tokens. With one group all are found in one call."""


class Lexer:
    """The tokens of a text and where they stand. Immutable.

    A module has a hundred thousand of them, and a few thousand that differ: those have a kind each.

    Args:
        text: PTX.

    Raises:
        PtxSyntaxError: a character begins no token.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.tokens: list[str] = _TOKEN.findall(text)
        """Their texts; the last one is empty."""
        self.kinds: dict[str, str] = {}
        """By the text: float, integer, string, word, sign or end."""
        for token in set(self.tokens):
            match = _KIND.fullmatch(token)
            if match is None:
                raise self._unknown(token)
            self.kinds[token] = match.lastgroup or ""

    def line(self, index: int) -> int:
        """The line a token stands in, from 1."""
        return bisect_right(self._line_starts, self._offsets[index])

    def _unknown(self, character: str) -> PtxSyntaxError:
        index = self.tokens.index(character)
        at = self._offsets[index]
        return PtxSyntaxError(f"line {self.line(index)}: unknown character in {self._text[at : at + 20]!r}")

    @cached_property
    def _offsets(self) -> list[int]:
        return [match.start(1) for match in _TOKEN.finditer(self._text)]

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self._text))]
