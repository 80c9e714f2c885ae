"""What a call costs the host: nothing is described or planned twice, autograd is told only where it is needed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore import descriptors, problems
from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.errors import BadParamError
from dnncore.torch import bridge
from tests.torch.test_convert import LAYERS

Tensor = Any
RELU = ActivationDescriptor(ActivationMode.RELU)
# Uneven windows are put together from PyTorch's operations at each call.
EVERY = [pytest.param(*layer, id=str(layer[0])) for layer in LAYERS]
PLANNED = [layer for layer in EVERY if not (isinstance(layer.values[0], nn.AdaptiveAvgPool1d))]


@dataclass
class Made:
    """Descriptors and problems that were made, and functions that autograd was told of."""

    values: list[str] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made()
    kinds = [getattr(module, name) for module in (descriptors, problems) for name in module.__all__]
    for kind in kinds:
        checked = getattr(kind, "__post_init__", None)
        if checked is None:
            continue

        def count(self: object, checked: Callable[[object], None] = checked) -> None:
            found.values.append(type(self).__name__)
            checked(self)

        monkeypatch.setattr(kind, "__post_init__", count)
    apply = torch.autograd.Function.apply.__func__

    def told(kind: type, *args: Any, **kwargs: Any) -> Any:
        found.applied.append(kind.__name__)
        return apply(kind, *args, **kwargs)

    monkeypatch.setattr(torch.autograd.Function, "apply", classmethod(told))
    yield found
