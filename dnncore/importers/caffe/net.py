"""A graph while layers are added one by one: which value a blob's name stands for, and which constants a layer's blobs fill.

Caffe's blobs may be rewritten in place, so that a name stands for one value after the other; here each has a name of its own, of
which the last, which is what readers outside mean, is the blob's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.blobs import MAX_ELEMENTS
from dnncore.importers.caffe.dnncore_caffe_pb2 import FillerParameter, LayerParameter, ParamSpec
from dnncore.importers.caffe.fillers import initializer
from dnncore.nn.graph import BATCH, Constant, Extent, Node, Role, Value
from dnncore.nn.initializers import Filled, Initializer
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.trainable import Multipliers

__all__ = ["MissingShapeError", "Net", "Site", "Stored", "UnknownInputError", "at_least", "decimal", "with_batch"]

Convert = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Of a layer's blobs a constant's elements, in any extents."""


class UnknownInputError(Exception):
    """A layer reads what a layer that could not be translated would have written."""


class MissingShapeError(NotSupportedError):
    """A layer reads an input of which no file says how large it is."""


@dataclass(frozen=True)
class Stored:
    """What a weights file has to hold for one layer. Immutable.

    Args:
        shapes: Extents of its blobs.
        fills: For each constant that is this layer's own, how it is made of the blobs.
    """

    shapes: tuple[tuple[int, ...], ...]
    fills: dict[str, Convert]


@dataclass
class Net:
    """The graph so far.

    Args:
        layers: All that will be added, which tells what the last writer of each blob is.
        phase: "train" or "test".
        input_shapes: Extents of inputs, without the batch, in place of those in the file.
        image_shape: Of images whose extents the file does not say.
    """

    layers: Sequence[LayerParameter]
    phase: str
    input_shapes: Mapping[str, Sequence[int]]
    image_shape: Sequence[int] | None = None
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    declared_batch: int | None = None
    losses: list[tuple[LayerParameter, str]] = field(default_factory=list)
    """Layers that end the net, and what their first bottom stands for."""
    multipliers: dict[str, Multipliers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._blobs: dict[str, str | None] = {}  # the value a blob stands for now; None where it could not be made
        self._given: set[str] = set()  # blobs that are inputs, and keep their names for those who feed them
        self._shapeless: set[str] = set()
        self._specs: dict[str, Spec] = {}
        self._writers = Counter(top for layer in self.layers for top in layer.top)
        self._written: Counter[str] = Counter()
        self._values = _Names(self._writers)
        self._node_names = _Names()
        self._shared: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._said: dict[
            tuple[str, str], float
        ] = {}  # multipliers that layers say of a shared parameter: its name, and which

    # Values.

    def input(self, blob: str, shape: Sequence[Extent] | None) -> None:
        """What is given at every run; without a shape, an error once somebody reads it."""
        self._may_write(blob, in_place=False)
        self._written[blob] += 1
        if shape is None:
            self._shapeless.add(blob)
            self._blobs[blob] = None
            return
        if not shape or any(not isinstance(extent, str) and not 1 <= extent <= MAX_ELEMENTS for extent in shape):
            raise BadParamError(f"input {blob!r} has extents {list(shape)}; they must be 1 or more")
        self._given.add(blob)
        value = Value(blob, DType.FLOAT32, tuple(shape))
        self.inputs.append(value)
        self._specs[blob] = _bounded(blob, value.spec(1))
        self._blobs[blob] = blob

    def value_of(self, blob: str) -> str:
        """The value that a blob's name stands for now.

        Raises:
            UnknownInputError: it could not be made.
            MissingShapeError: it is an input of unknown shape.
            BadParamError: no layer so far writes it.
        """
        if blob not in self._blobs:
            raise BadParamError(f"reads {blob!r}, which no layer before it writes")
        value = self._blobs[blob]
        if value is not None:
            return value
        if blob in self._shapeless:
            raise MissingShapeError(f"reads {blob!r}, whose shape no layer says; give it in `input_shapes`")
        raise UnknownInputError(blob)

    def is_known(self, blob: str) -> bool:
        """Whether a blob's name stands for a value."""
        return self._blobs.get(blob) is not None

    def shape(self, value: str) -> tuple[int, ...]:
        """Extents for one image."""
        return self._specs[value].shape

    def _may_write(self, blob: str, *, in_place: bool) -> None:
        if blob in self._blobs and not in_place:
            raise BadParamError(f"writes {blob!r}, which another layer has written; only a layer that reads it may")

    def write(self, layer: LayerParameter, blob: str) -> str:
        """A name for what a layer writes to a blob."""
        self._may_write(blob, in_place=blob in layer.bottom)
        self._written[blob] += 1
        is_last = self._written[blob] == self._writers[blob]
        return blob if is_last and blob not in self._given else self.free(f"{blob}.{self._written[blob]}")

    def lose(self, layer: LayerParameter) -> None:
        """Note that what a layer would have written cannot be had."""
        for top in layer.top:
            self._blobs[top] = None
            self._shapeless.discard(top)

    def point(self, blob: str, value: str) -> None:
        """Let a blob's name stand for a value."""
        self._blobs[blob] = value

    def node(self, name: str, operator: Operator, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
        """Add a node.

        Raises:
            BadParamError: the inputs do not fit.
        """
        found = operator.infer_checked([None if one is None else self._specs[one] for one in inputs])
        specs = [_bounded(output, spec) for output, spec in zip(outputs, found, strict=True)]
        self._specs.update(zip(outputs, specs, strict=True))
        self.nodes.append(Node(self._node_names.free(name or "layer"), operator, tuple(inputs), tuple(outputs)))

    def free(self, wanted: str) -> str:
        """A name that no value or constant has."""
        return self._values.free(wanted)

    # Constants.

    def constant(self, wanted: str, shape: Sequence[int], initial: Initializer, role: Role) -> str:
        """Add a constant; returns its name."""
        name = self.free(wanted)
        constant = Constant(name, tuple(shape), role=role, initial=initial)
        self._specs[name] = _bounded(name, constant.spec)
        self.constants[name] = constant
        return name

    def shared(self, spec: ParamSpec, blob: Sequence[int]) -> str | None:
        """The constant of another layer that a blob is, by the name the file gives both; None where there is none yet.

        Raises:
            BadParamError: it is of another shape.
        """
        if not spec.name or spec.name not in self._shared:
            return None
        name, theirs = self._shared[spec.name]
        if tuple(blob) != theirs:
            same = spec.share_mode == ParamSpec.PERMISSIVE and math.prod(blob) == math.prod(theirs)
            what = f"shares parameter {spec.name!r} of extents {list(theirs)}, its own are {list(blob)}"
            raise NotSupportedError(f"{what}: sharing under another shape") if same else BadParamError(what)
        return name

    def share(self, spec: ParamSpec, name: str, blob: Sequence[int]) -> None:
        """Let later layers find a constant by the name that the file gives it."""
        if spec.name:
            self._shared[spec.name] = (name, tuple(blob))

    def multiply(self, spec: ParamSpec, name: str) -> None:
        """Note the multipliers of a constant: of a shared one those that a layer says, whichever it is.

        Raises:
            BadParamError: another layer says another one of it.
        """
        for what in ("lr_mult", "decay_mult"):
            if spec.name and spec.HasField(what):
                value = getattr(spec, what)
                other = self._said.setdefault((spec.name, what), value)
                if other != value:
                    raise BadParamError(
                        f"{what} {value} of the shared parameter {spec.name!r}; another layer says {other}"
                    )
        lr, decay = (
            decimal(self._said.get((spec.name, what), getattr(spec, what))) for what in ("lr_mult", "decay_mult")
        )
        role = Role.TRAINABLE if lr else Role.FIXED
        self.constants[name] = replace(self.constants[name], role=role)
        if (found := Multipliers(lr, decay)) != Multipliers():
            self.multipliers[name] = found


class Site:
    """One layer while it is translated.

    Args:
        net: The graph so far.
        layer: The layer.
    """

    def __init__(self, net: Net, layer: LayerParameter) -> None:
        self.net = net
        self.layer = layer
        self._shapes: list[tuple[int, ...]] = []
        self._fills: dict[str, Convert] = {}

    def takes(self, bottoms: int | range, tops: int | range = 1) -> None:
        """Check how much the layer reads and writes.

        Raises:
            BadParamError: more or less.
        """
        if len(set(self.layer.top)) != len(self.layer.top):
            raise BadParamError("writes a blob twice")
        for what, found, wanted in (("bottoms", self.layer.bottom, bottoms), ("tops", self.layer.top, tops)):
            allowed = range(wanted, wanted + 1) if isinstance(wanted, int) else wanted
            if len(found) not in allowed:
                most = "" if len(allowed) == 1 else " or more" if allowed.stop > _MANY else f" to {allowed.stop - 1}"
                raise BadParamError(f"has {len(found)} {what}; it takes {allowed.start}{most}")

    @property
    def x(self) -> str:
        """The value that the first bottom stands for."""
        return self.bottom(0)

    def bottom(self, place: int) -> str:
        """The value that a bottom stands for."""
        return self.net.value_of(self.layer.bottom[place])

    @property
    def bottoms(self) -> list[str]:
        """The values that the bottoms stand for."""
        return [self.net.value_of(blob) for blob in self.layer.bottom]

    def shape(self, value: str) -> tuple[int, ...]:
        """Extents for one image."""
        return self.net.shape(value)

    def axis(self, axis: int, ndim: int, *, end: bool = False) -> int:
        """An index of a dimension, counted from the first.

        Args:
            axis: Counted from the last where negative.
            ndim: Number of dimensions.
            end: Whether the place behind the last is allowed.

        Raises:
            BadParamError: there is none.
        """
        if not -ndim <= axis < ndim + end:
            raise BadParamError(f"axis {axis} is none of {ndim} dimensions")
        return axis + ndim if axis < 0 else axis

    def add(self, part: str, operator: Operator, *inputs: str | None) -> str:
        """Add a node in the midst of the layer; returns its output."""
        output = self.net.free(f"{self.layer.name}.{part}")
        self.net.node(output, operator, inputs, (output,))
        return output

    def top(self, operator: Operator, *inputs: str | None, place: int = 0) -> None:
        """Add the node that writes a top."""
        blob = self.layer.top[place]
        output = self.net.write(self.layer, blob)
        self.net.node(self.layer.name, operator, inputs, (output,))
        self.net.point(blob, output)

    def tops(self, operator: Operator, *inputs: str | None) -> None:
        """Add the node that writes all tops."""
        outputs = [self.net.write(self.layer, blob) for blob in self.layer.top]
        self.net.node(self.layer.name, operator, inputs, outputs)
        for blob, output in zip(self.layer.top, outputs, strict=True):
            self.net.point(blob, output)

    def number(self, part: str, value: float) -> str:
        """A constant with one element that nothing changes."""
        with np.errstate(over="ignore"):  # infinite, as in Caffe
            single = float(np.float32(value))
        return self.net.constant(f"{self.layer.name}.{part}", (1,), Filled(single), Role.FIXED)

    def parameter(
        self,
        part: str,
        blob: Sequence[int],
        filler: FillerParameter,
        *,
        shape: Sequence[int] | None = None,
        convert: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> str:
        """The layer's next blob as a constant.

        Args:
            part: What it is called behind the layer's name.
            blob: Extents as Caffe has them.
            filler: What it begins with.
            shape: Extents as the graph has them; None for the same.
            convert: Of the blob the constant's elements, in row-major order; None for the same.

        Returns:
            The constant's name: another layer's, where the file lets them share it.
        """
        place = self.blob(blob)
        spec = self.layer.param[place] if place < len(self.layer.param) else ParamSpec()
        name = self.net.shared(spec, blob)
        if name is None:
            name = self.derived(
                part,
                blob if shape is None else shape,
                initializer(filler, blob),
                Role.TRAINABLE,
                lambda blobs: blobs[place] if convert is None else convert(blobs[place]),
            )
            self.net.share(spec, name, blob)
        self.net.multiply(spec, name)
        return name

    def blob(self, shape: Sequence[int]) -> int:
        """Note that the layer's next blob has these extents; returns which it is."""
        if min(shape, default=1) < 1 or math.prod(shape) > MAX_ELEMENTS:
            raise BadParamError(f"needs a blob of extents {list(shape)}; they must be 1 to {MAX_ELEMENTS} elements")
        self._shapes.append(tuple(shape))
        return len(self._shapes) - 1

    def derived(self, part: str, shape: Sequence[int], initial: Initializer, role: Role, convert: Convert) -> str:
        """A constant that is made of the layer's blobs."""
        name = self.net.constant(f"{self.layer.name}.{part}", shape, initial, role)
        self._fills[name] = convert
        return name

    def close(self) -> None:
        """Note what a weights file has to hold for the layer.

        Raises:
            BadParamError: another layer of that name has blobs too.
        """
        if self._shapes:
            if self.layer.name in self.net.stored:
                raise BadParamError("has the name of another layer, so that the weights of both cannot be told apart")
            self.net.stored[self.layer.name] = Stored(tuple(self._shapes), self._fills)


_MANY = 1 << 20


def _bounded(name: str, spec: Spec) -> Spec:
    if spec.size > MAX_ELEMENTS:
        raise BadParamError(f"{name!r} would have {spec.size} elements; {MAX_ELEMENTS} are the most")
    return spec


class _Names:
    """Names that are used, and what to use in place of those."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self._numbers: Counter[str] = Counter()

    def free(self, wanted: str) -> str:
        """A name that was not used, and is now."""
        name = wanted
        while name in self._used:
            self._numbers[wanted] += 1
            name = f"{wanted}.{self._numbers[wanted] + 1}"
        self._used.add(name)
        return name


def decimal(value: float) -> float:
    """The shortest decimal that a float of a file may have been written as: 1e-5 instead of 9.99999975e-06."""
    return float(str(np.float32(value)))


def at_least(least: int) -> range:
    """A number of bottoms or tops without a most."""
    return range(least, _MANY + 1)


def with_batch(shape: Sequence[int]) -> tuple[Extent, ...]:
    """Extents with the batch in place of the first."""
    return (BATCH, *shape[1:])
