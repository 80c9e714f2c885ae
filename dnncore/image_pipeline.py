"""Preprocessing on a device: images of 8 bits and of any sizes in, a net's input out.

The host decodes files (`Preprocessing.decode_whole`) and works out which pixels count with which weights; the device resizes, crops
and does the arithmetic. A quarter of the bytes of a float32 input, or less, is copied where images are not much larger than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from dnncore import ops
from dnncore.arena import Arena
from dnncore.backend import Event
from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError, PreprocessingError
from dnncore.handle import Handle
from dnncore.preprocessing import CenterCrop, Preprocessing, Resize
from dnncore.preprocessing.geometry import GeometricStep
from dnncore.preprocessing.resampling import check_one_pass, columns_first, taps
from dnncore.tensor import Tensor

__all__ = ["ImagePipeline"]

_FIELDS = 5
"""Of an image, as `ImageResizeProblem` describes it."""

_ALIGNMENT = 16
"""Of an image's first byte, so that a block of one size of images is read in whole vectors."""

_LONGEST_REMEMBERED = 8192
_MOST = 2**31 - 1  # offsets on the device have 32 bits
"""Rows or columns of an image whose taps are kept: those of a thin image of millions would fill the memory."""


class ImagePipeline:
    """The steps of a `Preprocessing` on a handle's device. Owned by one thread; checked by the handle.

    Resizing and cropping give the bits that the host gives, but for a resize without antialiasing, which is off by one of 255 in
    some pixels. The arithmetic gives them too, unless there is a mean image (`Normalization.operands`).

    Args:
        preprocessing: What to do. At most one `Resize`, which nothing but a `CentralFraction` may come before.
        handle: Where.

    Raises:
        PreprocessingError: the steps are not of that kind.
        OutOfMemoryError: the device has no room.
    """

    def __init__(self, preprocessing: Preprocessing, handle: Handle) -> None:
        check_one_pass(preprocessing.geometry)
        self.preprocessing = preprocessing
        self._handle = handle
        table, mean = preprocessing.normalization.operands()
        self._table = handle.upload(table)
        self._mean = None if mean is None else handle.upload(mean)
        self._batch: _Batch | None = None
        self._is_closed = False

    def run(self, images: Sequence[np.ndarray], y: Tensor) -> None:
        """Copy images to the device and enqueue what makes the net's input of them. They may be changed as soon as it returns.

        Args:
            images: N of them, uint8 [H, W, C], gray or red, green, blue, each of a size of its own.
            y: [N, C, height, width], float16, bfloat16 or float32, in any layout; overwritten.

        Raises:
            PreprocessingError: an image has another dtype or number of channels, or a size of which `resize` would make too much.
            BadParamError: y does not fit, or the handle is recording.
            OutOfMemoryError: the device has no room.
        """
        handle, preprocessing = self._handle, self.preprocessing
        if y.shape != (len(images), *preprocessing.input_shape):
            raise BadParamError(f"y has shape {y.shape}; {len(images)} images give {preprocessing.input_shape} each")
        if not images:
            return
        operands = self.load(images)
        assert self._batch is not None
        resized = self._batch.resized(len(images))
        rounds_between = all(step.antialias for step in preprocessing.geometry if isinstance(step, Resize))
        border = _border(preprocessing)
        ops.image_resize(handle, 1.0, *operands, 0.0, resized, border=border, rounds_between=rounds_between)
        order = preprocessing.normalization.order
        ops.image_normalization(handle, 1.0, resized, self._table, 0.0, y, mean=self._mean, order=order)

    def load(self, images: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Copy images to the device, and what is to be done to them.

        Args:
            images: One or more, as `run` takes them.

        Returns:
            The operands of `ops.image_resize`: pixels, images and taps; overwritten by the next call.

        Raises:
            as `run`.
        """
        self._handle.check_not_recording("a copy of images from the host")
        for image in images:
            self._check(image)
        batch = self._batch_for(images)
        batch.load(images)
        return batch.arena["pixels"], batch.images(len(images)), batch.arena["taps"]

    def from_bytes(self, files: Sequence[bytes], y: Tensor) -> None:
        """Decode files and `run`.

        Raises:
            PreprocessingError: as `Preprocessing.decode`.
            BackendUnavailableError: Pillow is not installed.
        """
        self.run([self.preprocessing.decode_whole(data) for data in files], y)

    def close(self) -> None:
        """Give the device's memory back; a second call does nothing."""
        for tensor in (self._table, self._mean):
            if tensor is not None:
                tensor.close()
        if self._batch is not None:
            self._batch.arena.close()
            self._batch = None
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _check(self, image: np.ndarray) -> None:
        channels = self.preprocessing.channels
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels or not image.size:
            raise PreprocessingError(
                f"an image is {image.dtype}{list(image.shape)}; uint8 [H, W, {channels}] is needed"
            )
        self.preprocessing.check_work(*image.shape[:2])

    def _batch_for(self, images: Sequence[np.ndarray]) -> _Batch:
        """Room for these images: what there is, or more."""
        if self._is_closed:
            raise ClosedError("an image pipeline was used after close()")
        sizes = {image.shape[:2] for image in images}
        geometry = self.preprocessing.geometry
        needed = (
            len(images),
            sum(words.size for size in sizes for words in _taps(geometry, *size)),
            sum(_aligned(image.nbytes) for image in images),
        )
        if max(needed) > _MOST:
            raise BadParamError(f"{len(images)} images have {needed[2]} bytes; at most {_MOST} go at a time")
        there = (0, 0, 0) if self._batch is None else self._batch.room
        if self._batch is None or any(wanted > had for wanted, had in zip(needed, there, strict=True)):
            if self._batch is not None:
                self._batch.arena.close()
                self._batch = None
            room = tuple(_grown(wanted, had) for wanted, had in zip(needed, there, strict=True))
            self._batch = _Batch(self._handle, self.preprocessing, *room)
        return self._batch


class _Batch:
    """Room for images and their taps, on the device and, page-locked, on the host, in one piece: one copy. Owned by one thread.

    Args:
        handle: Where.
        preprocessing: What is done to them.
        count: Most images.
        words: Most words of taps.
        nbytes: Most bytes of pixels.
    """

    def __init__(self, handle: Handle, preprocessing: Preprocessing, count: int, words: int, nbytes: int) -> None:
        self.room = count, words, nbytes
        self._handle = handle
        self._preprocessing = preprocessing
        shape = (count, *preprocessing.input_shape)
        self.arena: Arena = handle.arena(
            {
                "images": TensorDescriptor.packed((count, _FIELDS), DType.INT32),
                "taps": TensorDescriptor.packed((words,), DType.INT32),
                "pixels": TensorDescriptor.packed((nbytes,), DType.UINT8),
                "resized": TensorDescriptor.packed(shape, DType.UINT8, Layout.NHWC),
            }
        )
        self._start = {name: tensor.pointer - self.arena.pointer for name, tensor in self.arena.tensors.items()}
        self._host = handle.device.host_buffer(self._start["pixels"] + nbytes)
        self._copied: Event | None = None

    def images(self, count: int) -> Tensor:
        """The first rows of the operand `images`."""
        tensor = self.arena["images"]
        return tensor.view(tensor.descriptor.with_shape((count, _FIELDS)))

    def resized(self, count: int) -> Tensor:
        """uint8 [count, C, height, width], channels-last."""
        tensor = self.arena["resized"]
        return tensor.view(tensor.descriptor.with_shape((count, *tensor.shape[1:])))

    def load(self, images: Sequence[np.ndarray]) -> None:
        """Lay everything out in host memory and enqueue the copy."""
        if self._copied is not None:
            self._copied.synchronize()  # the last batch has left the host's memory
        host, start = self._host, self._start
        described = self._words("images", _FIELDS * len(images)).reshape(-1, _FIELDS)
        table = self._words("taps", self.room[1])
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        words, nbytes = 0, 0
        for row, image in zip(described, images, strict=True):
            size = image.shape[:2]
            if size not in places:
                both = _taps(self._preprocessing.geometry, *size)
                for each, at in zip(both, (words, words + both[0].size), strict=True):
                    table[at : at + each.size] = each
                places[size] = words, words + both[0].size
                words += both[0].size + both[1].size
            first = start["pixels"] + nbytes
            host[first : first + image.nbytes].reshape(image.shape)[...] = image
            order = columns_first(self._preprocessing.geometry, *size)
            row[...] = nbytes, image.shape[1] * image.shape[2], *places[size], order
            nbytes += _aligned(image.nbytes)
        stream = self._handle.stream
        self._handle.device.copy_to_device(stream, self.arena.address, host[: start["pixels"] + nbytes])
        self._copied = stream.record_event()

    def _words(self, name: str, count: int) -> npt.NDArray[np.int32]:
        """int32 [count] of the host's memory."""
        start = self._start[name]
        return self._host[start : start + 4 * count].view(np.int32)


def _taps(geometry: tuple[GeometricStep, ...], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of the rows' taps and of the columns'."""
    if max(height, width) > _LONGEST_REMEMBERED:
        return _computed_taps(geometry, height, width)
    return _remembered_taps(geometry, height, width)


def _computed_taps(geometry: tuple[GeometricStep, ...], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = taps(geometry, height, width)
    return rows.words, columns.words


_remembered_taps = lru_cache(maxsize=256)(_computed_taps)


def _border(preprocessing: Preprocessing) -> tuple[int, ...]:
    """The colour around an image that is smaller than the crop, one value a channel of the image."""
    channels = preprocessing.channels
    fill = next((step.fill for step in preprocessing.geometry if isinstance(step, CenterCrop)), (0,))
    return fill * channels if len(fill) == 1 else fill


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _grown(wanted: int, had: int) -> int:
    """As much as there was, or the next power of two: few sizes, so few plans."""
    return had if wanted <= had else 1 << (wanted - 1).bit_length()
