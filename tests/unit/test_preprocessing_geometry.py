from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import CenterCrop, CentralFraction, Color, Preprocessing, Resize, Step
from dnncore.preprocessing.sampling import sample
from tests.unit.image_files import encode

EXTENT = st.integers(1, 5000)
SMALL = st.integers(1, 40)


def ramp(height: int, width: int) -> Image.Image:
    """Every pixel says where it is: (row, column, 7)."""
    rows, columns = np.indices((height, width), np.uint8)
    return Image.fromarray(np.stack([rows, columns, np.full_like(rows, 7)], axis=-1))


@given(EXTENT, EXTENT, EXTENT, EXTENT, st.sampled_from(["down", "nearest"]))
def test_cover_and_contain_meet_the_box_on_one_side_and_keep_the_ratio(
    height: int, width: int, box_h: int, box_w: int, rounding: str
) -> None:
    for fit in ("cover", "contain"):
        rows, columns = Resize(box_h, box_w, fit, rounding=rounding).output_size(height, width)  # type: ignore[arg-type]
        assert rows == box_h or columns == box_w
        inside = rows <= box_h and columns <= box_w
        outside = rows >= box_h and columns >= box_w
        assert inside if fit == "contain" else outside
        # The free side is the exact one, rounded: less than 1 away, or it was raised to 1.
        exact = width * rows / height if rows == box_h else height * columns / width
        free = columns if rows == box_h else rows
        both = rows == box_h and columns == box_w
        assert both or free == 1 or abs(free - exact) < 1


@given(EXTENT, EXTENT, EXTENT)
def test_a_square_box_sets_the_shorter_or_the_longer_side(height: int, width: int, side: int) -> None:
    assert min(Resize(side, side, "cover").output_size(height, width)) == side
    assert max(Resize(side, side, "contain").output_size(height, width)) == side


@given(SMALL, SMALL, SMALL, SMALL, st.sampled_from(["down", "nearest"]))
def test_a_crop_takes_the_middle_and_puts_a_border_where_the_image_ends(
    height: int, width: int, crop_h: int, crop_w: int, rounding: str
) -> None:
    crop = CenterCrop(crop_h, crop_w, (200, 201, 202), rounding)  # type: ignore[arg-type]
    top, left = crop.offset(height, width)
    result = np.asarray(crop.apply(ramp(height, width)))
    assert result.shape == (crop_h, crop_w, 3)
    for row in range(crop_h):
        for column in range(crop_w):
            r, c = row + top, column + left
            is_image = 0 <= r < height and 0 <= c < width
            assert tuple(result[row, column]) == ((r, c, 7) if is_image else (200, 201, 202))
    # What goes away, or is added, is the same on both sides but for one.
    assert abs(top - (height - crop_h - top)) <= 1
    assert abs(left - (width - crop_w - left)) <= 1


@given(EXTENT, EXTENT, st.floats(0.01, 1), st.booleans())
def test_the_central_fraction_is_the_same_away_from_both_borders(
    height: int, width: int, fraction: float, square: bool
) -> None:
    rows, columns = CentralFraction(fraction, square).output_size(height, width)
    sides = (min(height, width),) * 2 if square else (height, width)
    for kept, side in zip((rows, columns), sides, strict=True):
        assert 1 <= kept <= side
        assert (side - kept) % 2 == 0
        assert kept - 2 <= side * fraction <= kept + 1e-9 or kept == side


def test_the_central_fraction_cuts_what_it_says() -> None:
    result = np.asarray(CentralFraction(0.5).apply(ramp(20, 40)))
    assert result.shape == (10, 20, 3)
    assert tuple(result[0, 0]) == (5, 10, 7)
    assert np.asarray(CentralFraction(1.0, square=True).apply(ramp(20, 40))).shape == (20, 20, 3)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(33, 47), (96, 80), (7, 300), (1, 1), (50, 40)])
@pytest.mark.parametrize("size", [(16, 16), (40, 50), (97, 3)])
def test_without_antialiasing_it_is_pytorchs_interpolation_but_for_one_of_255(
    interpolation: str, shape: tuple[int, int], size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    values = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(values, size, mode=interpolation, align_corners=False, antialias=False)
    theirs = theirs.round().clamp(0, 255).byte()[0].permute(1, 2, 0)
    difference = sample(pixels, *size, interpolation).astype(int) - theirs.numpy()
    assert abs(difference).max() <= 1
    assert np.count_nonzero(difference) <= 0.01 * difference.size


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_resize_without_antialiasing_takes_gray_and_colour(interpolation: str) -> None:
    resize = Resize(5, 9, interpolation=interpolation, antialias=False)  # type: ignore[arg-type]
    image = ramp(30, 40)
    assert np.array_equal(np.asarray(resize.apply(image)), sample(np.asarray(image), 5, 9, interpolation))
    gray = np.asarray(resize.apply(image.convert("L")))
    assert np.array_equal(gray[..., None], sample(np.asarray(image.convert("L"))[..., None], 5, 9, interpolation))


def test_an_image_of_the_right_size_is_not_touched() -> None:
    image = ramp(30, 40)
    for interpolation in ("nearest", "bilinear", "bicubic", "lanczos"):
        assert Resize(30, 40, interpolation=interpolation).apply(image) is image


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (Resize(256, 256, "cover"), (1, 400_000)),  # would become 256 x 102,400,000
        (Resize(256, 256), (400_000, 1)),  # 400,000 x 256 between the passes
        (Resize(256, 256, interpolation="lanczos"), (1, 5_000_000)),  # 60,000,000 bytes of weights
        (Resize(256, 256, "cover", antialias=False), (1, 400_000)),
        (Resize(256, 256, "cover", "nearest"), (400_000, 1)),
    ],
)
def test_a_thin_image_that_would_grow_beyond_all_bounds_is_refused(step: Resize, size: tuple[int, int]) -> None:
    preprocessing = Preprocessing((Color("gray"), step, CenterCrop(224, 224)))
    with pytest.raises(PreprocessingError, match="would take"):
        preprocessing.decode(encode(Image.new("1", size[::-1]), "PNG"))


@given(SMALL, SMALL)
def test_what_is_made_of_any_image_has_the_nets_size(height: int, width: int) -> None:
    pipelines: list[tuple[Step, ...]] = [
        (Resize(12, 12, "cover"), CenterCrop(10, 11)),
        (Resize(9, 12, "contain", rounding="nearest"), CenterCrop(10, 11, (1, 2, 3))),
        (CentralFraction(0.875, square=True), Resize(10, 11, antialias=False)),
        (CenterCrop(10, 11),),
    ]
    data = encode(ramp(height, width), "PNG")
    for steps in pipelines:
        pixels = Preprocessing((Color("rgb"), *steps)).decode(data)
        assert pixels.shape == (10, 11, 3)
        assert pixels.dtype == np.uint8


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resize(0, 3),
        lambda: Resize(3, 3, "stretch"),  # type: ignore[arg-type]
        lambda: Resize(3, 3, interpolation="cubic"),  # type: ignore[arg-type]
        lambda: Resize(3, 3, interpolation="lanczos", antialias=False),
        lambda: Resize(3, 3, rounding="up"),  # type: ignore[arg-type]
        lambda: CenterCrop(3, -1),
        lambda: CenterCrop(3, 3, (1, 2)),
        lambda: CenterCrop(3, 3, (256,)),
        lambda: CentralFraction(0.0),
        lambda: CentralFraction(1.5),
        lambda: CentralFraction(float("nan")),
    ],
)
def test_steps_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(PreprocessingError):
        make()  # type: ignore[operator]
