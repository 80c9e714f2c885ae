"""Nodes whose results nobody reads: heads that were for training only, and what exporters leave behind."""

from __future__ import annotations

from dnncore.nn.model import Model

__all__ = ["drop_unused"]


def drop_unused(model: Model) -> Model:
    """Leave out what no output depends on, and the weights that only it reads."""
    rewritten = model.graph.without_unused()
    return Model(rewritten, {name: model.weights[name] for name in rewritten.constant})
