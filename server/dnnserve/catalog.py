"""Which models are loaded, and what a request must know of each: its tensors, labels, preprocessing and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dnncore.preprocessing import Preprocessing
from dnnserve.envelope import ModelKey
from dnnserve.errors import InvalidRequestError, ModelNotFoundError
from dnnserve.signature import Signature, TensorSpec

__all__ = ["Catalog", "ModelSpec", "shorten"]

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One loaded version of a model. Immutable.

    Args:
        key: Its name and version.
        signature: What it reads and gives; where the device ranks classes, with two more outputs: values and indices of the best.
        labels: Of a classifier, one for each value of a row of its only output, which are probabilities; none at all for any other
            model, which answers tensors with tensors.
        preprocessing: How images become rows of its only input, float32 (C, H, W); None where nobody has said it.
        max_batch_rows: Rows that a batch, and so a request, may have.
        default_deadline_ns: For requests that bring none; 0: they wait as long as it takes.
        priority: Of requests that bring none, as `InferenceRequest` has it.
        ranked: How many classes of a row the device ranks; 0: none.
    """

    key: ModelKey
    signature: Signature
    labels: tuple[str, ...]
    preprocessing: Preprocessing | None
    max_batch_rows: int
    default_deadline_ns: int = 0
    priority: int = 0
    ranked: int = 0

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What clients know of."""
        return self.signature.outputs[:-2] if self.ranked else self.signature.outputs

    def label(self, index: int) -> str:
        """Name of a class; empty where the package has no labels."""
        return self.labels[index] if self.labels else ""


class Catalog:
    """The loaded models by name and version. Immutable.

    Args:
        specs: Each version once.
    """

    def __init__(self, specs: Iterable[ModelSpec]) -> None:
        self._models: dict[str, dict[int, ModelSpec]] = {}
        for spec in sorted(specs, key=lambda spec: spec.key):
            self._models.setdefault(spec.key.name, {})[spec.key.version] = spec

    @property
    def specs(self) -> tuple[ModelSpec, ...]:
        """Every loaded version, by name, then by version."""
        return tuple(spec for versions in self._models.values() for spec in versions.values())

    def versions(self, name: str) -> tuple[int, ...]:
        """Loaded versions of a model, ascending; none for an unknown one."""
        return tuple(self._models.get(name, ()))

    def find(self, name: str, version: str = "") -> ModelSpec:
        """Look up the version asked for, the latest when it is empty.

        Raises:
            InvalidRequestError: the name is empty, or the version is not a positive integer.
            ModelNotFoundError: not loaded; the message lists what is.
        """
        if not name:
            raise InvalidRequestError(f"the model's name is empty; loaded: {self._names()}")
        versions = self._models.get(name)
        if versions is None:
            raise ModelNotFoundError(f"model {shorten(name)} is not loaded; loaded: {self._names()}")
        if not version:
            return versions[max(versions)]
        if _VERSION.fullmatch(version) is None:
            raise InvalidRequestError(
                f"version {shorten(version)} of model {name!r} is not a positive integer; send one, or none for the latest"
            )
        spec = versions.get(int(version))
        if spec is None:
            there = ", ".join(map(str, versions))
            raise ModelNotFoundError(f"version {version} of model {name!r} is not loaded; loaded versions: {there}")
        return spec

    def _names(self) -> str:
        return ", ".join(map(repr, self._models)) or "none"


def shorten(text: str, limit: int = 80) -> str:
    """A client's text for a message: quoted, escaped and of bounded length."""
    return repr(text if len(text) <= limit else text[:limit] + "...")
