"""Depthwise convolution of channels-last images row by row: square filters of 3, 5 or 7 taps, not dilated, pieces of channels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dnncore.cuda.calls import Calls, Place, in_order, kernel_call
from dnncore.cuda.convolution.depthwise_plane import Plane, parts_for, where
from dnncore.cuda.convolution.depthwise_tiles import filter_fields, step
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import ADDRESS, c_type, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["Rows", "prepare_rows", "row_units", "where_by_rows"]

_FORMS = [
    (dtype, size, stride)
    for dtype, size, stride in itertools.product((DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32), (3, 5, 7), (1, 2))
    if (dtype, size, stride) != (DType.FLOAT32, 3, 1)
]
"""Element type, filter and stride. In fp32 3x3 of stride 1 goes by tiles: 64 x 64 x 112 x 112 in 231 us on an H200, by rows
in 300.
"""

_PIECE = 16
"""Bytes of channels that are copied at once."""

_VECTOR, _COLUMNS = 4, 4
"""kVector and kColumns in depthwise_rows.cuh."""

_MAX_THREADS, _THREADS = 256, 160
"""Of a block: at most, and what narrow images are put together for."""

_FEW_THREADS = 64
"""Of a block, which its warps' arithmetic and its copies take turns in."""

_RING_BYTES = 75 * 1024
"""Of shared memory, so that a multiprocessor of Hopper has room for three blocks."""

_SECTOR, _BANK_BYTES = 32, 128
"""Bytes that memory is read by, and that all banks of shared memory give at once."""

_MAX_EXTENT = 2**31

# Fitted to layers of MobileNetV2 at batch 256 in fp16 on an H200, those of stride 2 for memory: what an output and a product cost,
# in products at the device's rate in float32; the rate of memory.
_PER_OUTPUT, _PER_PRODUCT = 20.0, 2.8
_OF_MEMORY_RATE = 0.82

_PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("source", ADDRESS),
    ("w", ADDRESS),
    ("output", ADDRESS),
    ("source_image", "<i8"),
    ("source_row", "<i8"),
    ("output_image", "<i8"),
    ("output_row", "<i8"),
    ("w_filter", "<i8"),
    ("w_offset", "<i8"),
    ("w_row", "<i4"),
    ("w_column", "<i4"),
    ("source_rows", "<i4"),
    ("source_columns", "<i4"),
    ("output_rows", "<i4"),
    ("output_columns", "<i4"),
    ("source_column", "<i4"),
    ("output_column", "<i4"),
    ("padding_rows", "<i4"),
    ("padding_columns", "<i4"),
    ("images", "<i4"),
    ("lanes", "<i4"),
    ("groups", "<i4"),
    ("pitch", "<i4"),
    ("row_vectors", "<i4"),
    ("chunks", "<i4"),
    ("strips", "<i4"),
    ("crews", "<i4"),
    ("crew", "<i4"),
    ("walk", "<i4"),
    ("reads_filters_early", "<i4"),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """How a problem is cut into strips of rows. Immutable.

    Args:
        source: What is read at many places: x, or dy for backward-data.
        output: What is written: y, or dx.
        filter: Taps along either axis.
        stride: Along either axis.
        lanes: Vectors of channels of a block, which divide those that there are.
        groups: Of columns, of a strip.
        crew: Images that a block takes together.
    """

    source: TensorDescriptor
    output: TensorDescriptor
    filter: int
    stride: int
    lanes: int
    groups: int
    crew: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, plane: Plane, figures: DeviceFigures) -> Rows | None:
        """None where it is no problem for rows, or its shared memory is more than the device has."""
        x, w, conv = problem.x, problem.w, problem.convolution
        if conv.spatial_ndim != 2 or w.shape[0] != x.shape[1] or not x.size or not problem.y.size:
            return None
        size, stride = w.shape[2], conv.stride[0]
        regular = w.shape[2:] == (size, size) and conv.stride == (stride, stride) and conv.dilation == (1, 1)
        if not regular or (x.dtype, size, stride) not in _FORMS:
            return None
        if problem.direction is Direction.BACKWARD_FILTER or (
            problem.direction is Direction.BACKWARD_DATA and stride != 1
        ):
            return None
        if x.shape[1] % (_PIECE // x.dtype.itemsize) or not all(map(_is_in_pieces, (plane.source, plane.output))):
            return None
        found = [cut for lanes in _lanes(x) for cut in cls._strips(plane, size, stride, lanes)]
        if not found:
            return None
        best = min(found, key=lambda cut: (cut._overhead * cut._idleness(figures), -cut.threads))
        return best._with_crew() if best.shared_bytes <= figures.shared_bytes else None

    @classmethod
    def _strips(cls, plane: Plane, size: int, stride: int, lanes: int) -> Iterator[Rows]:
        """Images in one strip or several, those that fit."""
        groups = -(-plane.output.shape[3] // _COLUMNS)
        for strips in range(1, groups + 1):
            cut = cls(plane.source, plane.output, size, stride, lanes, -(-groups // strips), 1)
            if cut.threads <= _MAX_THREADS and cut.shared_bytes <= _RING_BYTES:
                yield cut
                return

    def _with_crew(self) -> Rows:
        """As many images together as a block has room for, if a strip is all of an image."""
        best, images = self, self.output.shape[0]
        while best.strips == 1 and best.crew < images:
            more = replace(self, crew=best.crew + 1)
            if more.threads > _THREADS or more.shared_bytes > _RING_BYTES:
                break
            best = more
        return best

    def _idleness(self, figures: DeviceFigures) -> float:
        """How many times as long it takes because multiprocessors have no block, or a block hardly any threads."""
        blocks = self.output.shape[0] * self.chunks * self.strips * -(-self.output.shape[2] // self.high)
        return max(1.0, figures.multiprocessors / blocks) * max(1.0, _FEW_THREADS / self.threads)

    @property
    def _overhead(self) -> float:
        """What is read and computed in vain: columns past the end, halos, parts of sectors; relative."""
        width, nbytes = self.output.shape[3], self.lanes * _VECTOR * self.source.dtype.itemsize
        columns = self.groups * _COLUMNS
        wasted = self.strips * columns / width
        return (
            wasted
            * (1 + (self.filter - self.stride) / (columns * self.stride))
            * (-(-nbytes // _SECTOR) * _SECTOR / nbytes)
        )

    def seconds(self, figures: DeviceFigures) -> float:
        """The launch, and arithmetic, of what lies past the borders too, or memory, whichever takes longer."""
        images, channels, height, _ = self.output.shape
        outputs = images * channels * -(-height // self.high) * self.high * self.strips * self.groups * _COLUMNS
        work = outputs * (_PER_OUTPUT + self.filter**2 * _PER_PRODUCT) / figures.products_per_second(Maths.FP32)
        memory = (self.source.nbytes + self.output.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return figures.launch_seconds + max(work * self._idleness(figures), memory)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.crew * self.groups * self.lanes

    @property
    def chunks(self) -> int:
        """Of channels."""
        return self.output.shape[1] // (_VECTOR * self.lanes)

    @property
    def strips(self) -> int:
        """Of an image."""
        return -(-self.output.shape[3] // (_COLUMNS * self.groups))

    @property
    def high(self) -> int:
        """Rows of the output that a step computes."""
        return 2 if self.stride == 1 else 1

    @property
    def pitch(self) -> int:
        """Vectors from group to group, so many that a group's banks follow those of the one before."""
        place, banks = self.lanes, _BANK_BYTES // (_VECTOR * self.source.dtype.itemsize)
        places = _COLUMNS * self.stride * place
        return places + (place - places) % banks

    @property
    def row_vectors(self) -> int:
        """Of a row of all images of a block."""
        beyond, last = divmod(self.filter - self.stride - 1, _COLUMNS * self.stride)
        return self.crew * ((self.groups + beyond) * self.pitch + (last + 1) * self.lanes)

    @property
    def shared_bytes(self) -> int:
        """The ring and the filters."""
        ring = self.stride * (self.high - 1) + self.filter + self.stride * self.high
        dtype = self.source.dtype
        weights = self.filter**2 * self.lanes * _VECTOR * dtype.compute.itemsize
        return ring * self.row_vectors * _VECTOR * dtype.itemsize + weights


def _is_in_pieces(tensor: TensorDescriptor) -> bool:
    """Whether its channels are innermost and pieces of them start at multiples of their size."""
    width = _PIECE // tensor.dtype.itemsize
    others = [tensor.strides[axis] for axis in (0, 2, 3) if tensor.shape[axis] > 1]
    return tensor.strides[1] == 1 and not any(stride % width or abs(stride) >= _MAX_EXTENT for stride in others)


def _lanes(x: TensorDescriptor) -> list[int]:
    """How many vectors of channels a block may take: whole pieces, and all blocks alike."""
    vectors, whole = x.shape[1] // _VECTOR, _PIECE // x.dtype.itemsize // _VECTOR
    return [n for n in range(whole, min(vectors, _MAX_THREADS) + 1, whole) if vectors % n == 0]


def _unit(dtype: DType, size: int, stride: int) -> Unit:
    high = 2 if stride == 1 else 1
    return generate(
        header="dnncore/convolution/depthwise_rows.cuh",
        entry=f"convolution_depthwise_rows_{size}x{size}_stride_{stride}_{c_type(dtype)}",
        function=f"depthwise::rows_of_channels<{c_type(dtype)}, {size}, {stride}, {high}>",
        struct_name="depthwise::RowParams",
        dtype=_PARAMS,
        threads=_MAX_THREADS,
    )


def row_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_rows` can launch."""
    return tuple(itertools.starmap(_unit, _FORMS))


def prepare_rows(problem: ConvolutionProblem, rows: Rows, figures: DeviceFigures) -> Calls:
    """Fill in the parameters."""
    conv, source, output = problem.convolution, rows.source, rows.output
    backward = problem.direction is Direction.BACKWARD_DATA
    padding = [(rows.filter - 1 - before) if backward else before for before, _ in conv.padding]
    chunks, strips = rows.chunks, rows.strips
    crews = -(-output.shape[0] // rows.crew)
    steps = -(-output.shape[2] // rows.high)
    walk = -(-steps // parts_for(figures, steps, chunks * strips * crews))
    params = record(
        _PARAMS,
        source_image=step(source, 0),
        source_row=step(source, 2),
        output_image=step(output, 0),
        output_row=step(output, 2),
        **filter_fields(problem, turned=backward),
        source_rows=source.shape[2],
        source_columns=source.shape[3],
        output_rows=output.shape[2],
        output_columns=output.shape[3],
        source_column=step(source, 3),
        output_column=step(output, 3),
        padding_rows=padding[0],
        padding_columns=padding[1],
        images=output.shape[0],
        lanes=rows.lanes,
        groups=rows.groups,
        pitch=rows.pitch,
        row_vectors=rows.row_vectors,
        chunks=chunks,
        strips=strips,
        crews=crews,
        crew=rows.crew,
        walk=walk,
    )
    places = in_order("w", "source", "output") if backward else in_order("source", "w", "output")
    return kernel_call(
        _unit(source.dtype, rows.filter, rows.stride),
        chunks * strips * crews * -(-steps // walk),
        rows.threads,
        params,
        places,
        shared_bytes=rows.shared_bytes,
        starts_early=figures.starts_early,
        constants={"reads_filters_early": places["w"]},
    )


def where_by_rows(problem: ConvolutionProblem, by_rows: Calls, otherwise: Calls) -> Calls:
    """The kernel of rows where the addresses of source and output are multiples of a piece, the other one elsewhere."""
    images = (0, 2) if problem.direction is Direction.FORWARD else (1, 2)
    return where(tuple((Place(operand), _PIECE) for operand in images), by_rows, otherwise)
