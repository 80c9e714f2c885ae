"""Where `torch.compile` stops tracing and calls us: in front of what plans and launches.

Its tracer, dynamo, would else follow our Python into planning, and into the reference backend. It asks for two marks: a function's,
when it meets a call of it, and a code object's, when that call is then made. `torch.compiler.disable` sets neither, but puts a
wrapper around the function, which each call pays for in eager mode too, and imports the compiler, which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["breaks_graph", "runs_untraced", "traced_from_within"]

_REASON = "dnncore plans and launches its own kernels; PyTorch compiles what lies between them"

_F = TypeVar("_F", bound=Callable[..., Any])


def breaks_graph(function: _F) -> _F:
    """Mark a function with which work of ours begins: the graph that is traced ends in front of it, and another begins behind.

    Under `fullgraph=True` PyTorch raises its own error, which gives the reason.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = _REASON
    return runs_untraced(function)


def runs_untraced(function: _F) -> _F:
    """Mark a function that is run as it is, with all that it calls, where it is called for real.

    A trace that meets the call goes on into it: so `torch.export` finds PyTorch's own layers there.
    """
    _skip(function, "SKIP")
    return function


def traced_from_within(function: _F) -> _F:
    """Mark a function that is run as it is where it is called for real, but for what it calls, of which graphs are made.

    For one that many modules have as their own: its graphs would be told apart, and bounded, as those of one function.
    """
    _skip(function, "DEFAULT")
    return function


def _skip(function: Any, callees: str) -> None:
    frames = torch._C._dynamo.eval_frame
    if hasattr(
        frames, "set_code_exec_strategy"
    ):  # before PyTorch 2.7 its compiler takes PyTorch's own layers: `is_traced`
        action = frames._FrameAction
        frames.set_code_exec_strategy(
            function.__code__, frames._FrameExecStrategy(action.SKIP, getattr(action, callees))
        )
