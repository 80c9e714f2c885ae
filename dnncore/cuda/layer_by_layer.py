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
from dnncore.problems import FusedConvolutionProblem

__all__ = ["LayerByLayer"]


class _Block(Protocol):
    """A problem of an x, a y and convolutions between them."""

    @property
    def input_names(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> tuple[FusedConvolutionProblem, ...]: ...


@dataclass(frozen=True, slots=True)
class LayerByLayer:
    """It computes everything that is legal. Immutable.

    Args:
        filters: Names of the layers' filters; the first ones have no layer where there are fewer. The bias of `middle` is
            `middle_bias`; what is added to the last one is `z`, or x where there is none.
    """

    filters: tuple[str, ...]
    name: str = "composed"

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of fused convolutions."""
        return ()

    def offer(self, problem: _Block, figures: DeviceFigures) -> Offer:
        """What the layers take."""
        found, layers = [], problem.layers
        for layer in layers:
            best = fastest(FUSED, layer, figures)
            assert best is not None, "the last algorithm supports everything"
            found.append(best[1])
        own_bytes = sum(aligned(layer.y.nbytes) for layer in layers[:-1])
        return Offer(
            sum(offer.seconds for offer in found),
            partial(self._prepare, problem, tuple(found), own_bytes),
            own_bytes + max(offer.workspace_bytes for offer in found),
            deterministic=all(offer.deterministic for offer in found),
            error_factor=max((offer.error_factor for offer in found if offer.error_factor is not None), default=None),
        )

    def _prepare(self, problem: _Block, offers: tuple[Offer, ...], own_bytes: int) -> Calls:
        given = {name: Place(i) for i, name in enumerate((*problem.input_names, "y"))}
        source, offset, calls = given["x"], 0, []
        filters = self.filters[-len(offers) :]
        for name, layer, offer in zip(filters, problem.layers, offers, strict=True):
            is_last = name == filters[-1]
            target = given["y"] if is_last else Place(WORKSPACE, offset)
            places = [source, given[name]]
            if layer.bias is not None:
                places.append(given[f"{name}_bias"])
            if layer.z is not None:
                places.append(given.get("z", given["x"]))
            factors = {} if is_last else {"alpha": 1.0, "beta": 0.0}
            calls.append(rewired(offer.prepare(), (*places, target), Place(WORKSPACE, own_bytes), **factors))
            source, offset = target, offset + aligned(layer.y.nbytes)
        return tuple(call for some in calls for call in some)
