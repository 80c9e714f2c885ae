"""What the kernels of whole channels are told: batch normalisation in training, and its gradients, in one launch."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dnncore.cuda.calls import FieldPath, Place
from dnncore.cuda.normalization.cuts import operands_of
from dnncore.cuda.normalization.frame import Operand, Partition
from dnncore.cuda.normalization.passes import places_of
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, record, small_divisor, struct
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem

__all__ = ["CHANNEL_PARAMS", "ChannelParameter", "addresses_of", "channel_params"]


class ChannelParameter(IntEnum):
    """What a channel has one value of, by its place in the struct; ChannelParameter in channel_params.cuh."""

    SCALE = 0
    BIAS = 1
    MEAN = 2
    INV_STD = 3
    FIRST_OLD = 4
    SECOND_OLD = 5
    FIRST_NEW = 6
    SECOND_NEW = 7


CHANNEL_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "dy", "y", "z", "output")),
    ("parameters", ADDRESS, len(ChannelParameter)),
    ("parameter_steps", "<i8", len(ChannelParameter)),
    ("step", "<i8"),
    *((name, "<f8") for name in ("epsilon", "momentum", "parameter_alpha", "parameter_beta")),
    ("run", SMALL_DIVISOR),
    *((name, "<i4") for name in ("outer", "inner", "dy_outer", "dy_inner", "vectors", "part", "columns", "channels")),
    ("narrow", "<u4"),
    ("rectifies", "<i4"),
    ("planes", SMALL_DIVISOR),
)
"""`dnncore::ChannelParams` of channel_params.cuh."""

_FIELDS = {Operand.X: "x", Operand.DY: "dy", Operand.Y: "y", Operand.Z: "z", Operand.OUTPUT: "output"}

_Problem = BatchNormForwardProblem | BatchNormBackwardProblem


def channel_params(problem: _Problem, partition: Partition, **own: object) -> np.ndarray:
    """Fill in CHANNEL_PARAMS, but for addresses.

    Args:
        problem: What is normalised.
        partition: Of its tensors into channels: whole packs, of at most two dimensions.
        own: Further fields, those of the algorithm that asks.
    """
    operands, width = operands_of(problem), 1 if partition.packs_groups else partition.width

    def steps(operand: Operand) -> tuple[int, int]:
        """From one run of vectors to the next, and from one vector."""
        *outer, inner = partition.elements[1 + operand]
        return outer[0] if outer else 0, inner * width

    (outer, inner), (dy_outer, dy_inner) = steps(Operand.X), steps(Operand.DY)
    given = {one: operands[Operand[one.name]] for one in ChannelParameter if Operand[one.name] in operands}
    params = record(
        CHANNEL_PARAMS,
        parameter_steps=[partition.groups[1 + Operand[one.name]][0] for one in ChannelParameter],
        step=partition.groups[1 + Operand.X][0] if partition.group_count > 1 else 0,
        run=small_divisor(partition.run),
        outer=outer,
        inner=inner,
        dy_outer=dy_outer,
        dy_inner=dy_inner,
        vectors=partition.element_packs,
        narrow=sum(1 << one for one, tensor in given.items() if tensor.dtype is not problem.x.dtype.compute),
        rectifies=problem.activation is not None,
        **own,
    )
    for name in ("epsilon", "momentum", "parameter_alpha", "parameter_beta"):
        params[name] = getattr(problem, name, 0.0)
    return params


def addresses_of(problem: _Problem) -> dict[FieldPath, Place]:
    """Its fields that take addresses."""
    places = {one: Place(place) for one, place in places_of(problem).items()}
    addresses: dict[FieldPath, Place] = {field: places[one] for one, field in _FIELDS.items() if one in places}
    return addresses | {
        ("parameters", int(one)): places[Operand[one.name]] for one in ChannelParameter if Operand[one.name] in places
    }
