"""Layer, RMS and group normalisation of groups that lie in one piece: a block keeps a group in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.frame import PACK_BYTES
from dnncore.cuda.normalization.statistics import Anywhere
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate_together, record, small_divisor, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import GroupNormForwardProblem, LayerNormForwardProblem

__all__ = ["BlockPerGroup"]

_THREADS, _WARP = 512, 32
"""Most of a block, kGroupThreads in block_per_group.cuh, and what they are a multiple of."""

_VECTORS = 8
"""That a thread has at most; kGroupVectors there."""

_VECTORS_WANTED = 4
"""That each thread has at least, where groups are enough for all multiprocessors."""

_LEAST_VECTORS = 32
"""Of a group; a block of fewer would leave threads of its one warp idle."""

_THREADS_AT_FULL_RATE = 1024
"""Per multiprocessor. Assumed, not measured on a GPU."""

_OF_MEMORY_RATE = {2: 0.62, 4: 0.8}
"""By the bytes of an element. An H200 took 106 us for 16,384 rows of 4,096 float16 (73 for planes of 112 x 112, which are 0.69);
that of float32 is assumed."""

_OF_MEMORY_RATE_UNCENTRED = 0.77
"""Of 16 bits where no mean is taken away: it took 84 us for 65,536 rows of 1,024 float16."""

_UNCENTRED_FLOAT32_LENGTHS, _OF_MEMORY_RATE_OF_LENGTHS = (1024, 4096), (0.9, 0.708)
"""Of such rows of float32: 141 us for 65,536 of 1,024 and 181 for 16,384 of 4,096, as many bytes. In between by the logarithm
[assumed], beyond as there."""

_OF_A_LAUNCH = 0.75
"""What one takes of that of kernels for all layouts, whose loads are under way later. Assumed, not measured on a GPU."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "scale", "bias", "y", "mean", "inv_std")),
    ("epsilon", "<f8"),
    ("plane", SMALL_DIVISOR),
    *((name, "<i4") for name in ("vectors", "planes", "groups", "narrow")),
)
_ANYWHERE = Anywhere("forward")
"""What computes it where addresses are not aligned."""

_FIELDS = {name: name for name in ("x", "scale", "bias", "y")} | {"saved_mean": "mean", "saved_inv_std": "inv_std"}

_Problem = LayerNormForwardProblem | GroupNormForwardProblem


@dataclass(frozen=True, slots=True)
class _Groups:
    """What is normalised together. Immutable.

    Args:
        count: How many.
        length: Elements of one.
        plane: Of those, neighbours that have a scale in common.
        different: Groups that have scales of their own, before these repeat.
        vector_bytes: What a thread reads at once.
        itemsize: Of an element, in bytes.
    """

    count: int
    length: int
    plane: int
    different: int
    vector_bytes: int
    itemsize: int

    @classmethod
    def of(cls, problem: _Problem) -> _Groups:
        """Of layer normalisation, each element of a row has a scale; of group normalisation, each plane."""
        x = problem.x
        itemsize = x.dtype.itemsize
        if isinstance(problem, LayerNormForwardProblem):
            length = math.prod(x.shape[problem.axis :])
            return cls(math.prod(x.shape[: problem.axis]), length, 1, 1, PACK_BYTES, itemsize)
        plane, images = math.prod(x.shape[2:]), x.shape[0]
        vector_bytes = PACK_BYTES if plane * itemsize % PACK_BYTES == 0 else PACK_BYTES // 2
        length = plane * x.shape[1] // problem.groups
        return cls(images * problem.groups, length, plane, problem.groups, vector_bytes, itemsize)

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return self.vector_bytes // self.itemsize

    @property
    def vectors(self) -> int:
        """Of a group."""
        return self.length // self.width

    def threads(self, figures: DeviceFigures) -> int:
        """Of a block: few that have several vectors each, if those of all groups are many enough."""
        few, many = (self._threads(each) for each in (_VECTORS_WANTED, 1))
        if few * self.count < figures.multiprocessors * _THREADS_AT_FULL_RATE:
            return many
        return few if few < _THREADS else self._threads(_VECTORS)  # so that two blocks fit on a multiprocessor

    def _threads(self, vectors: int) -> int:
        """Whole warps, of whose threads each has no more than so many vectors, unless that would be too many threads."""
        return min(-(-self.vectors // (vectors * _WARP)) * _WARP, _THREADS)


@dataclass(frozen=True, slots=True)
class BlockPerGroup:
    """Layer, RMS and group normalisation, a block for each group. Immutable."""

    name: str = "block_per_group"

    def offer(self, problem: _Problem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what computes it where addresses are not aligned."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        groups = _Groups.of(problem)
        anywhere = _ANYWHERE.offer(problem, figures)
        threads = groups.threads(figures)
        busy = min(threads * groups.count / (figures.multiprocessors * _THREADS_AT_FULL_RATE), 1.0)
        rate = figures.bytes_per_second * _of_memory_rate(problem, groups) * busy
        seconds = figures.launch_seconds * _OF_A_LAUNCH + operand_bytes(problem) / rate
        prepare = partial(_prepare, problem, groups, threads, figures.starts_early, anywhere)
        return Offer(seconds, prepare, anywhere.workspace_bytes)

    def units(self) -> tuple[Unit, ...]:
        """Its own, and those for addresses that are not aligned."""
        own = (unit for dtype in _DTYPES for unit in _units(dtype).values())
        return (*own, *_ANYWHERE.units())


def _of_memory_rate(problem: _Problem, groups: _Groups) -> float:
    if problem.saved_mean is not None:
        return _OF_MEMORY_RATE[groups.itemsize]
    if groups.itemsize != DType.FLOAT32.itemsize:
        return _OF_MEMORY_RATE_UNCENTRED
    short, long = map(math.log, _UNCENTRED_FLOAT32_LENGTHS)
    of_short, of_long = _OF_MEMORY_RATE_OF_LENGTHS
    part = min(max((math.log(groups.length) - short) / (long - short), 0.0), 1.0)
    return of_short + (of_long - of_short) * part


def _why_not(problem: _Problem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    if problem.x.dtype not in _DTYPES:
        return f"x is of {problem.x.dtype.value}; there are kernels for {', '.join(dtype.value for dtype in _DTYPES)}"
    if not problem.x.size:
        return "x is empty"
    names = (*problem.input_names, *problem.output_names)
    for name, tensor in zip(names, (*problem.inputs, *problem.outputs), strict=True):
        if not tensor.is_row_major:
            return f"{name} ({tensor}) is not in one piece, row by row"
    groups = _Groups.of(problem)
    whole = groups.length if isinstance(problem, LayerNormForwardProblem) else groups.plane
    if whole % groups.width:
        return f"runs of {whole} elements are no whole vectors of {groups.width}"
    if not _LEAST_VECTORS <= groups.vectors <= _THREADS * _VECTORS:
        return f"groups of {groups.length} elements are not {_LEAST_VECTORS} to {_THREADS * _VECTORS} vectors of {groups.width}"
    if groups.count >= 2**31:
        return f"{groups.count} groups are more than a grid has blocks"
    return None


def _prepare(problem: _Problem, groups: _Groups, threads: int, starts_early: bool, anywhere: Offer) -> Calls:
    names = (*problem.input_names, *problem.output_names)
    places = {name: Place(place) for place, name in enumerate(names)}
    dtype = problem.x.dtype
    each = isinstance(problem, LayerNormForwardProblem)
    parameters = {"scale": problem.scale, "bias": problem.bias}
    params = record(
        _PARAMS,
        epsilon=problem.epsilon,
        plane=small_divisor(groups.plane // groups.width),
        vectors=groups.vectors,
        planes=groups.length // groups.plane,
        groups=groups.different,
        narrow=sum(
            1 << bit
            for bit, one in enumerate(parameters.values())
            if one is not None and one.dtype is not dtype.compute
        ),
    )
    addresses: dict[FieldPath, Place] = {_FIELDS[name]: place for name, place in places.items()}
    unit = _units(dtype)[each, groups.vector_bytes]
    calls = kernel_call(unit, groups.count, threads, params, addresses, starts_early=starts_early)
    alignments = [(places[name], groups.vector_bytes) for name in ("x", "y")]
    if each:
        alignments += [
            (places[name], groups.width * one.dtype.itemsize) for name, one in parameters.items() if one is not None
        ]
    return (WhereAligned(tuple(alignments), calls, anywhere.prepare),)


def _units(dtype: DType) -> dict[tuple[bool, int], Unit]:
    """By whether each element has a scale of its own, and the bytes of a vector."""
    element = c_type(dtype)
    wanted = [(True, PACK_BYTES), (False, PACK_BYTES)]
    if dtype.itemsize == 2:
        wanted.append((False, PACK_BYTES // 2))
    entries = {
        (each, nbytes): f"normalization_group_{element}_{'rows' if each else 'planes'}"
        + ("" if nbytes == PACK_BYTES else "_halves")
        for each, nbytes in wanted
    }
    functions = {
        entry: f"normalize_group<{element}, {nbytes}, {str(each).lower()}>" for (each, nbytes), entry in entries.items()
    }
    units = generate_together(
        "dnncore/normalization/block_per_group.cuh",
        functions,
        "GroupParams",
        _PARAMS,
        _THREADS,
        starts_early=True,
    )
    return {key: units[entry] for key, entry in entries.items()}
