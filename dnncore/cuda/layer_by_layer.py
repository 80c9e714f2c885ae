"""A block of layers as its layers: fused convolutions one after the other, through the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems.layers import Layer

__all__ = ["LAYER_BY_LAYER"]


class _Block(Protocol):
    """A problem of convolutions one after the other."""

    @property
    def input_names(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...


@dataclass(frozen=True, slots=True)
class LayerByLayer:
    """It computes everything that is legal. Immutable."""

    name: str = "composed"

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of fused convolutions."""
        return ()

    def offer(self, problem: _Block, figures: DeviceFigures) -> Offer:
        """What the layers take."""
        found, layers = [], problem.layers
        for layer in layers:
            best = fastest(FUSED, layer.problem, figures)
            assert best is not None, "the last algorithm supports everything"
            found.append(best[1])
        own_bytes = sum(aligned(layer.problem.y.nbytes) for layer in layers[:-1])
        return Offer(
            sum(offer.seconds for offer in found),
            partial(_prepare, problem, tuple(found), own_bytes),
            own_bytes + max(offer.workspace_bytes for offer in found),
            deterministic=all(offer.deterministic for offer in found),
            error_factor=max((offer.error_factor for offer in found if offer.error_factor is not None), default=None),
        )


def _prepare(problem: _Block, offers: tuple[Offer, ...], own_bytes: int) -> Calls:
    places = {name: Place(i) for i, name in enumerate((*problem.input_names, "y"))}
    offset, calls = 0, []
    for layer, offer in zip(problem.layers, offers, strict=True):
        is_between = layer.result not in places
        if is_between:
            places[layer.result] = Place(WORKSPACE, offset)
            offset += aligned(layer.problem.y.nbytes)
        operands = [places[name] for name in (*layer.operands, layer.result)]
        factors = {"alpha": 1.0, "beta": 0.0} if is_between else {}
        calls.append(rewired(offer.prepare(), operands, Place(WORKSPACE, own_bytes), **factors))
    return tuple(call for some in calls for call in some)


LAYER_BY_LAYER = LayerByLayer()
