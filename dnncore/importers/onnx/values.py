"""What a name of an ONNX graph stands for while it is imported: a tensor of the net, or elements that are known already.

Both are kept for two numbers of images. What differs between them depends on the batch, as the first element of a shape does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.errors import NotSupportedError
from dnncore.nn.operator import Spec

__all__ = ["FEW", "MANY", "Computed", "Imported", "Known"]

FEW = 2
"""The smaller of the two numbers of images."""

MANY = 3
"""The larger, which is no multiple of it."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A value of the net. Immutable.

    Args:
        name: In the net.
        few: Dtype and shape for `FEW` images.
        many: For `MANY`.
    """

    name: str
    few: Spec
    many: Spec

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.few.shape)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For `FEW` and for `MANY` images."""
        return self.few.shape, self.many.shape

    def extent(self, axis: int) -> int:
        """An extent that does not depend on the batch.

        Raises:
            NotSupportedError: it does.
        """
        few, many = self.few.shape[axis], self.many.shape[axis]
        if few != many:
            raise NotSupportedError(f"dimension {axis} of {self.few} for {FEW} images depends on the batch")
        return few

    def __str__(self) -> str:
        return str(self.few)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Elements that are known before anything runs. Immutable.

    Args:
        name: In the file.
        few: Elements for `FEW` images.
        many: For `MANY`; the same array where nothing depends on the batch.
        of_file: Whether an initialiser of the file is in it, and not numbers of the exporter's alone.
    """

    name: str
    few: np.ndarray
    many: np.ndarray
    of_file: bool = False

    @property
    def is_parameter(self) -> bool:
        """Whether it looks like something that is trained: several floating-point numbers of the file."""
        image = self.few if self.is_fixed else self.image
        return self.of_file and image is not None and image.dtype.kind == "f" and image.size > 1

    @property
    def is_fixed(self) -> bool:
        """Whether it is the same for every batch."""
        return self.few is self.many or _same(self.few, self.many)

    @property
    def fixed(self) -> np.ndarray:
        """The elements, where they do not depend on the batch.

        Raises:
            NotSupportedError: they do.
        """
        if not self.is_fixed:
            raise NotSupportedError(
                f"{self.name!r} depends on the batch: "
                f"{self.few.dtype}{list(self.few.shape)} for {FEW} images, {list(self.many.shape)} for {MANY}"
            )
        return self.few

    @property
    def image(self) -> np.ndarray | None:
        """The elements for one image where the first dimension counts images and all have the same; None elsewhere."""
        if (self.few.shape[:1], self.many.shape[:1]) != ((FEW,), (MANY,)) or self.few.shape[1:] != self.many.shape[1:]:
            return None
        image: np.ndarray = self.few[0]
        all_same = all(_same(array, np.broadcast_to(image, array.shape)) for array in (self.few, self.many))
        return image if all_same else None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


Imported = Computed | Known
"""What a name stands for."""
