"""Which layers a net has in a phase: the rules `include` and `exclude`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dnncore.errors import BadParamError
from dnncore.importers.caffe.dnncore_caffe_pb2 import TEST, TRAIN, LayerParameter, NetStateRule

__all__ = ["NetState"]


@dataclass(frozen=True)
class NetState:
    """What rules are compared with. Immutable.

    Args:
        phase: "train" or "test".
        level: Any number.
        stages: Any names.

    Raises:
        BadParamError: the phase is neither.
    """

    phase: str = "test"
    level: int = 0
    stages: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.phase not in ("test", "train"):
            raise BadParamError(f"phase {self.phase!r} is neither 'test' nor 'train'")

    def meets(self, rule: NetStateRule) -> bool:
        """Whether a rule's phase and level are these, all its stages are here, and none of those it excludes."""
        return not (
            (rule.HasField("phase") and rule.phase != {"train": TRAIN, "test": TEST}[self.phase])
            or (rule.HasField("min_level") and self.level < rule.min_level)
            or (rule.HasField("max_level") and self.level > rule.max_level)
            or not self.stages.issuperset(rule.stage)
            or self.stages.intersection(rule.not_stage)
        )

    def keeps(self, layer: LayerParameter) -> bool:
        """Whether a layer is there: one of its rules `include` is met, if it has any, and none of its rules `exclude`."""
        if layer.include:
            return any(map(self.meets, layer.include))
        return not any(map(self.meets, layer.exclude))

    def kept(self, layers: Iterable[LayerParameter]) -> list[LayerParameter]:
        """The layers that are there."""
        return [layer for layer in layers if self.keeps(layer)]

    @staticmethod
    def contradictions(layers: Iterable[LayerParameter]) -> list[str]:
        """What is wrong with the rules themselves."""
        return [
            f"layer {layer.name!r} has both include and exclude rules; it may have one kind"
            for layer in layers
            if layer.include and layer.exclude
        ]
