"""Other extents, other orders of dimensions, other dtypes, and what is known of a tensor before its elements are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import FEW, MANY, Computed, Imported, Known
from dnncore.nn.operators import Binary, Cast, Dropout, Identity, Transpose, Zeros

__all__ = ["RULES"]


def known_pair(call: Call, index: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The elements of an operand for few and for many images.

    Raises:
        NotSupportedError: they are computed while the net runs.
    """
    found = call.operand(index)
    if isinstance(found, Computed):
        raise NotSupportedError(f"{what} must be constant, it is computed while the net runs")
    return found.few, found.many


def _whole(array: np.ndarray) -> tuple[int, ...]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadParamError(f"a list of whole numbers is needed, it is {array.dtype}{list(array.shape)}")
    return tuple(int(number) for number in array)


def _reshape(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    literal_zero = bool(call.attributes.integer("allowzero", 0))
    targets = [_whole(one) for one in known_pair(call, 1, "the shape")]
    if len({len(target) for target in targets}) > 1:
        raise NotSupportedError("the number of dimensions depends on the batch")
    shapes = []
    for target, shape, images in zip(targets, x.shapes, (FEW, MANY), strict=True):
        wanted = list(target)
        if (
            call.fixed_batch is not None
            and wanted[:1] == [call.fixed_batch]
            and (x.few.shape[:1], x.many.shape[:1]) == ((FEW,), (MANY,))
        ):
            wanted[0] = images  # the model was made for so many images, and is imported for any number
        if not literal_zero:
            if any(extent == 0 and axis >= len(shape) for axis, extent in enumerate(wanted)):
                raise BadParamError(f"{x} has no extent for each 0 of {wanted}")
            wanted = [shape[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
        shapes.append(_settled(wanted, math.prod(shape), x))
    return (call.reshape(x, *shapes),)


def _settled(wanted: Sequence[int], size: int, x: Computed) -> tuple[int, ...]:
    """Extents with the one that is left to be found, -1, filled in."""
    known = math.prod(extent for extent in wanted if extent != -1)
    free = wanted.count(-1)
    if free > 1 or min(wanted, default=0) < -1 or (size % known if free and known else known != size):
        raise BadParamError(f"{x} cannot be seen as {list(wanted)}")
    return tuple(size // known if extent == -1 else extent for extent in wanted)


def _flatten(call: Call) -> Sequence[Imported]:
    x, axis = call.tensor(0), call.attributes.integer("axis", 1)
    axis = axis if axis == x.ndim else call.axis(axis, x.ndim)
    few, many = ((math.prod(shape[:axis]), math.prod(shape[axis:])) for shape in x.shapes)
    return (call.reshape(x, few, many),)


def _axes(call: Call) -> tuple[int, ...] | None:
    return call.attributes.integers("axes") if call.version < 13 else call.integers(1, "axes")


def _squeeze(call: Call) -> Sequence[Imported]:
    x, axes = call.tensor(0), _axes(call)
    if axes is None:
        gone = {axis for axis in range(x.ndim) if x.few.shape[axis] == x.many.shape[axis] == 1}
    else:
        gone = {call.axis(axis, x.ndim) for axis in axes}
    if any(x.few.shape[axis] != 1 or x.many.shape[axis] != 1 for axis in gone):
        raise BadParamError(f"dimensions {sorted(gone)} of {x} have not all extent 1")
    few, many = (tuple(extent for axis, extent in enumerate(shape) if axis not in gone) for shape in x.shapes)
    return (call.reshape(x, few, many),)


def _unsqueeze(call: Call) -> Sequence[Imported]:
    x, axes = call.tensor(0), _axes(call)
    if axes is None:
        raise BadParamError("axes are left out")
    ndim = x.ndim + len(axes)
    new = {call.axis(axis, ndim) for axis in axes}
    if len(new) != len(axes):
        raise BadParamError(f"axes {list(axes)} name a dimension twice")

    def shape(old: tuple[int, ...]) -> tuple[int, ...]:
        left = iter(old)
        return tuple(1 if axis in new else next(left) for axis in range(ndim))

    return (call.reshape(x, shape(x.few.shape), shape(x.many.shape)),)


def _transpose(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    order = call.attributes.integers("perm")
    return (call.emit(Transpose(tuple(reversed(range(x.ndim))) if order is None else order), x),)


def _expand(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    few, many = (_whole(one) for one in known_pair(call, 1, "the shape"))
    return (expanded(call, x, few, many),)


def expanded(call: Call, x: Computed, few: Sequence[int], many: Sequence[int]) -> Computed:
    """x broadcast.

    Raises:
        NotSupportedError: to an extent that depends on the batch, and is neither one of x nor the number of images in front.
    """
    if len(few) != len(many):
        raise NotSupportedError("the number of dimensions depends on the batch")
    ndim = max(x.ndim, len(few))
    wanted = []
    has_images = x.ndim == ndim and (*x.few.shape[:1], *x.many.shape[:1]) == (FEW, MANY)
    to_images = len(few) == ndim and (*few[:1], *many[:1]) == (FEW, MANY) and not has_images
    if to_images:
        few, many = few[1:], many[1:]
    for axis, (a, b) in enumerate(zip(few, many, strict=True), x.ndim - len(few)):
        if a != b and not (axis >= 0 and (x.few.shape[axis], x.many.shape[axis]) == (a, b)):
            raise NotSupportedError(f"broadcasting {x} to the batch is not supported")
        wanted.append(a if a == b else 1)
    if to_images:
        return call.expand(x, wanted, to_images=True)
    if ndim == x.ndim and all(
        extent in (1, of) for extent, of in zip(reversed(wanted), reversed(x.few.shape), strict=False)
    ):
        return x
    return call.expand(x, wanted)


def _tile(call: Call) -> Sequence[Imported]:
    """Repeats are broadcast along dimensions of their own, which are then joined with those that they repeat."""
    x, repeats = call.tensor(0), _whole(call.known(1, "repeats"))
    if len(repeats) != x.ndim or min(repeats, default=1) < 1:
        raise NotSupportedError(f"repeats {list(repeats)} must be positive, one for each dimension of {x}")
    apart = [tuple(e for extent in shape for e in (1, extent)) for shape in x.shapes]
    wide = [tuple(e for extent, n in zip(shape, repeats, strict=True) for e in (n, extent)) for shape in x.shapes]
    joined = [tuple(extent * n for extent, n in zip(shape, repeats, strict=True)) for shape in x.shapes]
    y = expanded(call, call.reshape(x, *apart), *wide)
    return (call.reshape(y, *joined),)


def _identity(call: Call) -> Sequence[Imported]:
    return (call.emit(Identity(), call.tensor(0)),)


def _dropout(call: Call) -> Sequence[Imported]:
    ratio = call.attributes.real("ratio", 0.5)
    call.attributes.integer("seed", 0)
    call.attributes.integer("is_test", 0)  # before opset 7; a net that is imported is not trained, whatever it says
    if call.version >= 12:
        given = call.known(1, "the ratio", optional=True)
        ratio = ratio if given is None else float(given.reshape(()))
        training = call.known(2, "training_mode", optional=True)
        if training is not None and training.any() and ratio:
            raise NotSupportedError("training_mode is not supported: export the model for inference")
    x = call.tensor(0)
    if not call.wants(1):
        return (call.emit(Dropout(ratio), x),)
    zeros = call.emit(Zeros(), x)
    mask = call.emit(Binary("equal"), zeros, zeros)  # nothing is dropped; bool since opset 10
    return call.emit(Identity(), x), mask if call.version >= 10 else call.emit(Cast(x.few.dtype.value), mask)


def _shape(call: Call) -> Sequence[Imported]:
    x = call.operand(0)
    shapes = x.shapes if isinstance(x, Computed) else (x.few.shape, x.many.shape)
    start = call.attributes.integer("start", 0)
    end = call.attributes.integer("end", len(shapes[0]))
    return (_of_shape(call, *(np.array(shape[start:end], np.int64) for shape in shapes)),)


def _size(call: Call) -> Sequence[Imported]:
    x = call.operand(0)
    shapes = x.shapes if isinstance(x, Computed) else (x.few.shape, x.many.shape)
    return (_of_shape(call, *(np.array(math.prod(shape), np.int64) for shape in shapes)),)


def _of_shape(call: Call, few: np.ndarray, many: np.ndarray) -> Known:
    return Known(call.outputs[0], few, few if np.array_equal(few, many) else many)


def _constant(call: Call) -> Sequence[Imported]:
    attributes = call.attributes
    tensor = attributes.tensor("value")
    if tensor is None and "value_float" in attributes:
        tensor = np.array(attributes.real("value_float", 0.0), np.float32)
    if tensor is None and "value_floats" in attributes:
        tensor = np.array(attributes.reals("value_floats"), np.float32)
    if tensor is None and "value_int" in attributes:
        tensor = np.array(attributes.integer("value_int", 0), np.int64)
    if tensor is None and "value_ints" in attributes:
        tensor = np.array(attributes.integers("value_ints"), np.int64)
    if tensor is None:
        raise NotSupportedError("a constant that is a string or sparse is not supported")
    return (Known(call.outputs[0], tensor, tensor),)


def _depth_to_space(call: Call) -> Sequence[Imported]:
    x, block = call.tensor(0), call.attributes.integer("blocksize", 0)
    mode = call.attributes.text("mode", "DCR")
    if x.ndim != 4 or block < 1 or x.extent(1) % block**2 or mode not in ("DCR", "CRD"):
        raise BadParamError(f"mode {mode!r} and blocksize {block} do not fit {x}")
    depth = x.extent(1) // block**2
    inner, order = (
        ((block, block, depth), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((depth, block, block), (0, 1, 4, 2, 5, 3))
    )
    y = call.emit(Transpose(order), call.reshape(x, *((n, *inner, h, w) for n, _, h, w in x.shapes)))
    return (call.reshape(y, *((n, depth, h * block, w * block) for n, _, h, w in x.shapes)),)


def _space_to_depth(call: Call) -> Sequence[Imported]:
    x, block = call.tensor(0), call.attributes.integer("blocksize", 0)
    if x.ndim != 4 or block < 1 or x.extent(2) % block or x.extent(3) % block:
        raise BadParamError(f"blocksize {block} does not fit {x}")
    mode = call.attributes.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise BadParamError(f"mode {mode!r} is unknown")
    y = call.reshape(x, *((n, c, h // block, block, w // block, block) for n, c, h, w in x.shapes))
    y = call.emit(Transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)), y)
    return (call.reshape(y, *((n, c * block**2, h // block, w // block) for n, c, h, w in x.shapes)),)


RULES: Mapping[str, Rule] = {
    "Constant": _constant,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
