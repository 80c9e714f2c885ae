"""Images as planes of neighbouring pixels (NCHW), as the copy engine of sm_90 sees them for filters of one tap. Pure.

It wants planes that begin at multiples of 16 bytes: those of 7 x 7 pixels, packed, it cannot take.
"""

from __future__ import annotations

from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, FARTHEST_BYTES, BoxMap
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem

__all__ = ["has_one_tap", "plane_strides", "planes_map", "reads_planes", "why_not_in_planes", "why_not_one_tap"]


def has_one_tap(problem: ConvolutionProblem) -> bool:
    """Whether the filters have one tap, without padding and strides."""
    conv = problem.convolution
    return problem.w.shape[2:] == (1, 1) and conv.stride == (1, 1) and not any(map(any, conv.padding))


def why_not_one_tap(problem: ConvolutionProblem) -> str | None:
    """None where `has_one_tap`, else the reason."""
    if has_one_tap(problem):
        return None
    conv = problem.convolution
    return f"taps {problem.w.shape[2:]}, strides {conv.stride}, padding {conv.padding}; it takes one tap alone"


def reads_planes(problem: ConvolutionProblem) -> bool:
    """Whether the filters have one tap, and both images lie in planes."""
    return has_one_tap(problem) and None not in (plane_strides(problem.x), plane_strides(problem.y))


def why_not_in_planes(problem: ConvolutionProblem) -> str | None:
    """None where `reads_planes`, else the reason."""
    reason = why_not_one_tap(problem)
    if reason is not None:
        return reason
    aligned = ALIGNMENT_BYTES // problem.x.dtype.itemsize
    return next(
        (
            f"{name} ({tensor}) needs neighbouring pixels, and planes a multiple of {aligned} elements apart"
            for name, tensor in (("x", problem.x), ("y", problem.y))
            if plane_strides(tensor) is None
        ),
        None,
    )


def plane_strides(tensor: TensorDescriptor) -> tuple[int, int] | None:
    """Elements from image to image and from plane to plane; None where pixels are no neighbours or planes begin anywhere.

    Along an extent of 1 no step is ever taken.
    """
    n, c, h, w = tensor.shape
    of_n, of_c, of_h, of_w = tensor.strides
    if (w > 1 and of_w != 1) or (h > 1 and of_h != w):
        return None
    aligned = ALIGNMENT_BYTES // tensor.dtype.itemsize
    step_c = of_c if c > 1 else -(-h * w // aligned) * aligned
    step_n = of_n if n > 1 else step_c * c
    most = FARTHEST_BYTES // tensor.dtype.itemsize
    return (step_n, step_c) if all(0 < step < most and step % aligned == 0 for step in (step_n, step_c)) else None


def planes_map(tensor: TensorDescriptor, pixels: int, planes: int) -> BoxMap:
    """Boxes of so many pixels of an image, of so many planes; the tensor has `plane_strides`."""
    strides = plane_strides(tensor)
    assert strides is not None, f"{tensor}"
    n, c, h, w = tensor.shape
    of_n, of_c = (step * tensor.dtype.itemsize for step in strides)
    return BoxMap(tensor.dtype, (h * w, c, n), (of_c, of_n), (pixels, planes, 1))
