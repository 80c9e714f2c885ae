"""What loads, stores and atomics have in common: modifiers of opcodes, and what they report to the checker."""

from __future__ import annotations

__all__ = ["CACHE_MODIFIERS", "LOAD_CACHE", "access", "bare_space", "scope_of"]

# Hints of PTX ISA 9.7.9.1 and 9.7.9.2, which change nothing that a program can see.
_L1 = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "L2::evict_normal|L2::evict_first|L2::evict_last"
CACHE_MODIFIERS = f".l1?={_L1} .l2?={_L2} .L2::cache_hint?"
LOAD_CACHE = f"{CACHE_MODIFIERS} .prefetch?=L2::64B|L2::128B|L2::256B"

_KINDS = {
    "": "EMU_GENERIC",
    "global": "EMU_GLOBAL",
    "const": "EMU_CONST",
    "shared": "EMU_SHARED",
    "cluster": "EMU_CLUSTER",
}


def bare_space(space: str) -> str:
    """A space's name without what stands behind `::`, but for shared::cluster, which is "cluster"."""
    return "cluster" if space == "shared::cluster" else space.partition("::")[0]


def scope_of(modifiers: dict[str, str]) -> str:
    """The C++ name of an access's scope: without one it is the widest that a default can be, .gpu; volatile is .sys."""
    return "scope::sys" if modifiers.get("order") == "volatile" else f"scope::{modifiers.get('scope') or 'gpu'}"


def access(address: str, size: int, kind: str, space: str, location: int) -> str:
    """The C++ that announces an access to the checker; nothing for spaces that only their thread can reach."""
    name = _KINDS.get(bare_space(space))
    return f"access(T, {address}, {size}, {kind} | {name}, {location});" if name else ""
