"""PTX text to tokens (PTX ISA 4.3 to 4.5)."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from emulator.ptx.errors import PtxSyntaxError

__all__ = ["Lexer", "Token"]

_TOKEN = re.compile(
    r"""
    (?:\s+|//[^\n]*|/\*.*?\*/)*
    (?:(?P<float>0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<word>[%.]?[A-Za-z_$%][\w$%]*(?:(?:\.|::)[\w$]+)*)
  | (?P<sign>[{}\[\]()<>,;|@!+\-=:~*/&^?])
  | (?P<end>\Z))
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A token; `kind` is float, integer, string, word, sign or end."""

    kind: str
    text: str
    offset: int


class Lexer:
    """The tokens of a text and where they stand. Immutable."""

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.tokens = list(self._scan(text))

    def line(self, token: Token) -> int:
        """The line a token stands in, from 1."""
        return bisect_right(self._line_starts, token.offset)

    def _scan(self, text: str) -> list[Token]:
        tokens, at = [], 0
        for match in _TOKEN.finditer(text):
            if match.start() != at:
                break
            at = match.end()
            tokens.append(Token(match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0)))
        if not tokens or tokens[-1].kind != "end":
            raise PtxSyntaxError(
                f"line {bisect_right(self._line_starts, at)}: unknown character in {text[at : at + 20]!r}"
            )
        return tokens
