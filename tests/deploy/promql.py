"""What a PromQL expression names, read well enough to notice a name that no server has."""

from __future__ import annotations

import re

__all__ = ["PROMETHEUS_LABELS", "labels_in", "metrics_in"]

PROMETHEUS_LABELS = frozenset({"job", "instance", "le"})
"""Labels that Prometheus adds or that belong to the format."""

_NOT_METRICS = re.compile(
    r"\{[^}]*\}|\[[^]]*\]|\boffset\s+\w+|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)"
)
_IDENTIFIER = re.compile(r"[a-zA-Z_:][\w:]*(?!\w*\s*\()")
_LABELS = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_OPERATORS = frozenset({"and", "or", "unless", "bool"})


def metrics_in(expression: str) -> set[str]:
    """Return the names of the series that an expression reads."""
    return set(_IDENTIFIER.findall(_NOT_METRICS.sub(" ", expression))) - _OPERATORS


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression selects or groups by."""
    grouped = (name.strip() for names in _GROUPING.findall(expression) for name in names.split(","))
    return {*_LABELS.findall(expression), *grouped}
