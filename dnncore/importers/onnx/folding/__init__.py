"""Operators computed on the host, in NumPy, where all operands are known: arithmetic on shapes, and constants made of constants.

What is here need not exist on any device. Shape, Size and Constant are not: they know more than their operands' elements.
"""

from collections.abc import Mapping

from dnncore.importers.onnx.folding import arithmetic, casting, parts, ranking, shape
from dnncore.importers.onnx.folding.fold import Fold, Folding

__all__ = ["FOLDS", "Folding"]

FOLDS: Mapping[str, Fold] = {**arithmetic.FOLDS, **casting.FOLDS, **parts.FOLDS, **ranking.FOLDS, **shape.FOLDS}
"""By operator."""
