"""Activations, forward and backward."""

from __future__ import annotations

from dnncore.cuda.elementwise import Function, elementwise
from dnncore.cuda.params import struct
from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem

__all__ = ["ACTIVATION", "BACKWARD", "FORWARD", "activation_record"]

ACTIVATION = struct(("coefficient", "<f8"), ("mode", "<i4"))
"""`dnncore::Activation` of activation.cuh; made by `activation_record`."""

_MODES = {None: 0} | {mode: 1 + i for i, mode in enumerate(ActivationMode)}
"""`dnncore::ActivationMode`; None is the identity."""


def activation_record(activation: ActivationDescriptor | None) -> tuple[float, int]:
    """Fill in an ACTIVATION; None is the identity."""
    return (0.0, _MODES[None]) if activation is None else (activation.coefficient, _MODES[activation.mode])


def _mode(problem: ActivationForwardProblem | ActivationBackwardProblem) -> ActivationMode:
    return problem.activation.mode


def _settings(problem: ActivationForwardProblem | ActivationBackwardProblem) -> tuple[float, float]:
    return problem.activation.coefficient, 0.0


FORWARD, BACKWARD = (
    elementwise(Function(name, kinds=tuple(ActivationMode), kind=_mode, settings=_settings))
    for name in ("ActivationForward", "ActivationBackward")
)
