"""Tensor maps against the rules of the driver API, and the boxes that they describe against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emulator.tests.async_units import Array, Layout, TensorType, TensorUse, address, map_bytes, refused, rows_of, units


def tensor(shape: list[int], element: int, seed: int = 1) -> Array:
    """Random bytes of a packed tensor; `shape` innermost first, the result outermost first with an axis of bytes."""
    return np.random.default_rng(seed).integers(1, 256, (*reversed(shape), element), np.uint8)


def tile(data: Array, coordinates: list[int], box: list[int], steps: list[int]) -> Array:
    """What a tiled copy fetches: zeros outside of the tensor."""
    counts = [box[0], *(-(-b // s) for b, s in zip(box[1:], steps[1:], strict=True))]
    steps = [1, *steps[1:]]
    result = np.zeros((*reversed(counts), data.shape[-1]), np.uint8)
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        at = [c + i * s for c, i, s in zip(reversed(coordinates), index, reversed(steps), strict=True)]
        if all(0 <= a < n for a, n in zip(at, data.shape[:-1], strict=True)):
            result[index] = data[tuple(at)]
    return result


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [TensorType.U8, TensorType.F16, TensorType.F32, TensorType.F64])
def test_tiled_boxes(rank: int, kind: TensorType) -> None:
    random = np.random.default_rng(rank)
    for _ in range(8):
        dims = [16 * int(random.integers(1, 4)), *(int(n) for n in random.integers(1, 7, rank - 1))]
        steps = [1, *(int(n) for n in random.integers(1, 4, rank - 1))]
        box = [16 * int(random.integers(1, 3)), *(int(n) for n in random.integers(1, 6, rank - 1))]
        start = [int(random.integers(-20, 40)), *(int(n) for n in random.integers(-4, 7, rank - 1))]
        encoded, problem = Layout(dims, kind, element_strides=steps).tiled(box)
        assert problem == ""
        data = tensor(dims, kind.size)
        rows = rows_of(encoded, start)
        np.testing.assert_array_equal(
            rows.copied(data.ravel(), kind.size).ravel(), tile(data, start, box, steps).ravel()
        )


def test_tiled_box_of_a_padded_tensor() -> None:
    memory = np.arange(4 * 96, dtype=np.uint8)
    encoded, problem = Layout([40, 4], TensorType.F16, strides=[96]).tiled([8, 2])
    assert problem == ""
    np.testing.assert_array_equal(rows_of(encoded, [36, 2]).copied(memory, 2)[:, :8], memory.reshape(4, 96)[2:4, 72:80])


def columns(
    data: Array,
    base: list[int],
    offsets: list[int],
    corners: tuple[list[int], list[int]],
    steps: list[int],
    pixels: int,
    channels: int,
) -> Array:
    """What an im2col copy fetches: the list of all bases in the bounding boxes of all images, from the first one on."""
    batch, *image, _ = data.shape[:-1]
    lower, upper, inner_last = corners[0][::-1], corners[1][::-1], steps[::-1]
    ranges = [range(a, n + b, s) for a, b, n, s in zip(lower, upper, image, inner_last, strict=True)]
    bases = [(n, *at) for n in range(batch + pixels) for at in itertools.product(*ranges)]
    start = bases.index((base[-1], *reversed(base[1:-1])))
    result = np.zeros((pixels, channels, data.shape[-1]), np.uint8)
    for row, (n, *at) in enumerate(bases[start : start + pixels]):
        where = [a + o for a, o in zip(at, reversed(offsets), strict=True)]
        if n >= batch or any(not 0 <= w < size for w, size in zip(where, image, strict=True)):
            continue
        here = data[(n, *where)][max(base[0], 0) : base[0] + channels]
        first = max(-base[0], 0)
        result[row, first : first + len(here)] = here
    return result


@pytest.mark.parametrize("images", [1, 2, 3])
def test_im2col_boxes(images: int) -> None:
    random = np.random.default_rng(images)
    tried = 0
    for _ in range(12):
        dims = [16, *(int(n) for n in random.integers(3, 8, images)), 3]
        steps = [1, *(int(n) for n in random.integers(1, 3, images)), 1]
        lower = [-int(n) for n in random.integers(0, 2, images)]
        upper = [-int(n) for n in random.integers(0, 2, images)]
        offsets = [int(n) for n in random.integers(0, 3, images)]
        pixels = int(random.integers(1, 60))
        start = [low + step * int(random.integers(0, 2)) for low, step in zip(lower, steps[1:-1], strict=True)]
        start = [
            min(b, n - 1 + u) if s == 1 else b for b, n, u, s in zip(start, dims[1:], upper, steps[1:], strict=False)
        ]
        base = [int(random.choice([-8, 0, 8])), *start, 1]
        if any(b > n - 1 + u for b, n, u in zip(start, dims[1:-1], upper, strict=True)):
            continue
        tried += 1
        encoded, problem = Layout(dims, TensorType.F32, element_strides=steps).im2col(lower, upper, 16, pixels)
        assert problem == ""
        data = tensor(dims, 4)
        rows = rows_of(encoded, base, offsets)
        assert rows.problem == ""
        expected = columns(data, base, offsets, (lower, upper), steps[1:-1], pixels, 16)
        np.testing.assert_array_equal(rows.copied(data.ravel(), 4).ravel(), expected.ravel())
    assert tried > 6


def test_im2col_is_convolution() -> None:
    """A 3 x 3 filter with padding 1 and stride 2 over NHWC, as a kernel would ask for it."""
    batch, height, width, channels, pad, stride = 2, 7, 9, 8, 1, 2
    data = np.random.default_rng(3).standard_normal((batch, height, width, channels)).astype(np.float32)
    filters = np.random.default_rng(4).standard_normal((3, 3, channels)).astype(np.float32)
    out_height, out_width = (height + 2 * pad - 3) // stride + 1, (width + 2 * pad - 3) // stride + 1
    lower = [-pad, -pad]
    upper = [(out_width - 1) * stride + 1 - width - pad, (out_height - 1) * stride + 1 - height - pad]
    pixels = batch * out_height * out_width
    layout = Layout([channels, width, height, batch], TensorType.F32, element_strides=[1, stride, stride, 1])
    encoded, problem = layout.im2col(lower, upper, channels, pixels)
    assert problem == ""
    result = np.zeros(pixels, np.float32)
    memory = data.view(np.uint8).ravel()
    for row, column in itertools.product(range(3), range(3)):
        fetched = rows_of(encoded, [0, -pad, -pad, 0], [column, row]).copied(memory, 4).view(np.float32)
        result += fetched @ filters[row, column]
    padded = np.pad(data, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = [
        (padded[n, y * stride : y * stride + 3, x * stride : x * stride + 3] * filters).sum()
        for n, y, x in itertools.product(range(batch), range(out_height), range(out_width))
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use", TensorUse)
@pytest.mark.parametrize(
    ("kind", "x", "fits"),
    [
        (TensorType.F16, 8, True), (TensorType.F16, 48, True), (TensorType.F16, 1, False), (TensorType.F16, 4, False),
        (TensorType.F32, 4, True), (TensorType.F32, 1, False), (TensorType.U8, 112, True), (TensorType.U8, 100, False),
        (TensorType.F64, 2, True), (TensorType.F64, 1, False),
    ],
)  # fmt: skip
def test_inner_coordinates_are_multiples_of_16_bytes(use: TensorUse, kind: TensorType, x: int, fits: bool) -> None:
    encoded, _ = Layout([48, 20], kind).tiled([16, 8])
    said = refused(encoded, [x, 30], use)
    assert said == "" if fits else "an H200 refuses what is not a multiple of 16" in said


@pytest.mark.parametrize("place", [[-8, 0], [0, -3]])
def test_only_loads_begin_before_the_tensor(place: list[int]) -> None:
    encoded, _ = Layout([40, 20]).tiled([16, 8])
    assert refused(encoded, place, TensorUse.LOAD) == refused(encoded, place, TensorUse.PREFETCH) == ""
    assert "stores and reductions before the start" in refused(encoded, place, TensorUse.STORE)


def test_im2col_stores_want_a_lower_corner_that_is_not_negative() -> None:
    padded, _ = Layout([16, 10, 10, 3]).im2col([0, -1], [0, -1], 8, 12)
    assert refused(padded, [0, 0, 0, 0], TensorUse.LOAD) == ""
    assert "pixelBoxLowerCorner[1] is -1" in refused(padded, [0, 0, 0, 0], TensorUse.STORE)
    plain, _ = Layout([16, 10, 10, 3]).im2col([0, 0], [-2, 0], 8, 12)
    assert refused(plain, [8, 1, 1, 1], TensorUse.STORE) == ""
    assert "coordinate 0 is 4" in refused(plain, [4, 0, 0, 0], TensorUse.LOAD)


def test_im2col_refuses_what_is_outside() -> None:
    encoded, _ = Layout([8, 9, 9, 2], TensorType.F32).im2col([-1, -1], [-1, -1], 8, 4)
    assert rows_of(encoded, [0, 7, 7, 0], [255, 0]).problem == ""
    assert "outside of the bounding box -1..7" in rows_of(encoded, [0, 8, 0, 0], [0, 0]).problem
    assert "outside of the bounding box -1..7" in rows_of(encoded, [0, 0, -2, 0], [0, 0]).problem
    assert "not below 256" in rows_of(encoded, [0, 0, 0, 0], [256, 0]).problem
    strided, _ = Layout([8, 9, 9, 2], TensorType.F32, element_strides=[1, 1, 1, 2]).im2col([0, 0], [0, 0], 8, 4)
    assert "not emulated" in rows_of(strided, [0, 0, 0, 0], [0, 0]).problem


def test_swizzle_patterns() -> None:
    """The programming guide's formula: smem[y][x] holds chunk x ^ (y / r) % 2^b, in rows of the swizzle's span."""
    lines_of = {1: 4, 2: 2, 3: 1}  # rows of the pattern's span in 128 bytes
    for mode, bits in ((0, 0), (1, 1), (2, 2), (3, 3)):
        span = 16 << bits
        for chunk in range(4096 // 16):
            row, column = divmod(chunk * 16, span)
            turned = column // 16 ^ (row // lines_of[bits]) % (1 << bits) if bits else column // 16
            assert units().swizzle(chunk * 16 + 5, mode) == row * span + turned * 16 + 5
    assert units().swizzle(0x400 | 0x80, 3) == (0x400 | 0x80) ^ 0x10


@pytest.mark.parametrize(
    ("bytes_of_row", "mode", "fits"), [(48, 0, True), (32, 1, True), (16, 1, False), (128, 3, True), (64, 3, False)]
)
def test_rows_narrower_than_the_swizzle_are_refused(bytes_of_row: int, mode: int, fits: bool) -> None:
    assert units().row_fills_swizzle(bytes_of_row, mode) == fits


def test_tf32_rounds_to_even_and_ftz_flushes() -> None:
    bits = np.array([0x3F801000, 0x3F803000, 0x3F800FFF, 0x3FFFF000, 0x7F800000, 0x00000001, 0x80400000], np.uint32)
    rounded = bits.copy()
    units().convert(address(rounded), bits.size, TensorType.TF32)
    assert [hex(b) for b in rounded] == [
        "0x3f800000",
        "0x3f804000",
        "0x3f800000",
        "0x40000000",
        "0x7f800000",
        "0x0",
        "0x80400000",
    ]
    flushed = bits.copy()
    units().convert(address(flushed), bits.size, TensorType.F32_FTZ)
    assert [hex(b) for b in flushed[4:]] == ["0x7f800000", "0x0", "0x80000000"]
    assert (flushed[:4] == bits[:4]).all()
    untouched = bits.copy()
    units().convert(address(untouched), bits.size, TensorType.F32)
    assert (untouched == bits).all()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(TensorType.F16, np.float16), (TensorType.F32, np.float32), (TensorType.F64, np.float64)]
)
def test_fill_with_nan(kind: TensorType, dtype: type[np.floating]) -> None:
    values = np.ones(5, dtype)
    units().fill(address(values), 4, kind, 1)
    assert np.isnan(values[:4]).all()
    assert values[4] == 1
    units().fill(address(values), 4, kind, 0)
    assert (values[:4] == 0).all()


RULES = [
    ("boxDim[0] is not in 1..256", Layout([64]), [257]),
    ("boxDim[1] is not in 1..256", Layout([64, 64]), [64, 0]),
    ("not a multiple of 16 bytes", Layout([64]), [4]),
    ("tensorRank 0", Layout([64], rank=0), [64]),
    ("tensorRank 6", Layout([16, 2, 2, 2, 2], rank=6), [16, 1, 1, 1, 1]),
    ("globalAddress", Layout([64], base=8), [64]),
    ("globalAddress", Layout([64], base=0), [64]),
    ("globalDim[0] is not in 1..2^32", Layout([0]), [64]),
    ("globalDim[1] is not in 1..2^32", Layout([64, (1 << 32) + 1]), [64, 1]),
    ("globalStrides[0] is not a multiple of 16", Layout([64, 2], strides=[136]), [64, 1]),
    ("globalStrides[0] is not below 2^40", Layout([64, 2], strides=[1 << 40]), [64, 1]),
    ("elementStrides[1] is not in 1..8", Layout([64, 2], element_strides=[1, 9]), [64, 1]),
    ("elementStrides[0] is not in 1..8", Layout([64, 2], element_strides=[0, 1]), [64, 1]),
    ("CUtensorMapDataType", Layout([64], type=16), [64]),
    ("4-bit and 6-bit", Layout([128], type=14), [128]),
    ("interleave needs a tensorRank of 3", Layout([16, 2], interleave=1), [16, 1]),
    ("not emulated: CU_TENSOR_MAP_INTERLEAVE_16B and _32B", Layout([16, 2, 2], interleave=1), [16, 1, 1]),
    ("no CUtensorMapInterleave", Layout([64], interleave=3), [64]),
    ("no CUtensorMapSwizzle", Layout([64], swizzle=7), [64]),
    ("not emulated: CU_TENSOR_MAP_SWIZZLE_128B_ATOM_*", Layout([64], swizzle=4), [64]),
    ("more than the 32 bytes of the swizzle", Layout([64], swizzle=1), [32]),
    ("more than the 64 bytes of the swizzle", Layout([64], swizzle=2), [64]),
    ("more than the 128 bytes of the swizzle", Layout([256], swizzle=3), [128]),
    ("no CUtensorMapL2promotion", Layout([64], promotion=4), [64]),
    ("no CUtensorMapFloatOOBfill", Layout([64], fill=2), [64]),
    ("needs a floating-point tensorDataType", Layout([64], TensorType.S32, fill=1), [64]),
]


@pytest.mark.parametrize(("said", "layout", "box"), RULES)
def test_tiled_rules(said: str, layout: Layout, box: list[int]) -> None:
    encoded, problem = layout.tiled(box)
    assert said in problem
    assert not units().encoded(address(encoded))


IM2COL_RULES = [
    ("tensorRank 2", Layout([16, 4]), [0], [0], 16, 4),
    ("pixelBoxLowerCorner[0] is not in -32768..32767", Layout([16, 4, 4]), [-32769], [0], 16, 4),
    ("pixelBoxLowerCorner[1] is not in -128..127", Layout([16, 4, 4, 4]), [0, -129], [0, 0], 16, 4),
    ("pixelBoxUpperCorner[2] is not in -16..15", Layout([16, 4, 4, 4, 4]), [0, 0, 0], [0, 0, 16], 16, 4),
    ("the bounding box is empty", Layout([16, 4, 4, 4]), [0, 2], [0, -2], 16, 4),
    ("channelsPerPixel is not in 1..256", Layout([16, 4, 4]), [0], [0], 257, 4),
    ("channelsPerPixel times the element size", Layout([16, 4, 4]), [0], [0], 4, 4),
    ("pixelsPerColumn is not in 1..1024", Layout([16, 4, 4]), [0], [0], 16, 1025),
    ("bytes of the swizzle", Layout([64, 4, 4], swizzle=2), [0], [0], 64, 4),
]


@pytest.mark.parametrize(("said", "layout", "lower", "upper", "channels", "pixels"), IM2COL_RULES)
def test_im2col_rules(
    said: str, layout: Layout, lower: list[int], upper: list[int], channels: int, pixels: int
) -> None:
    encoded, problem = layout.im2col(lower, upper, channels, pixels)
    assert said in problem
    assert not units().encoded(address(encoded))


def test_limits_that_are_allowed() -> None:
    assert Layout([256, 1 << 32, 3], TensorType.U8, strides=[256, (1 << 40) - 16]).tiled([256, 256, 1])[1] == ""
    assert (
        Layout([16, 4, 4, 4], TensorType.F16, element_strides=[8, 8, 8, 8]).im2col([-128, 0], [127, -3], 16, 1024)[1]
        == ""
    )


def test_a_map_is_made_anywhere_and_can_be_moved() -> None:
    encoded, problem = Layout([64]).tiled([64], map_bytes(offset=16))
    assert problem == ""
    assert units().encoded(address(encoded))
    assert units().replace_map_address(address(encoded), 1 << 24) == b""
    assert int(encoded.view(np.uint64)[1]) == 1 << 24
    assert b"16-byte aligned" in units().replace_map_address(address(encoded), (1 << 24) + 4)
    assert b"never encoded" in units().replace_map_address(address(map_bytes()), 1 << 24)
