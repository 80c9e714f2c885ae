"""Checkpoints: everything that a run needs to go on as if it had not stopped, in one file that is whole or not there.

A checkpoint is a safetensors file. Its header's metadata has one entry, "dnntrain": JSON text with the version of this format, the
run's state and a SHA-256 of state and tensors. No generator's state is in it, because none lives from one iteration to the next:
the order of the images is a pure function of seed and epoch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from dnncore.errors import CheckpointError, DivergedError

__all__ = ["Checkpoint", "CheckpointStore", "TrainingState", "replace_file"]

_METADATA_KEY = "dnntrain"
_VERSION = 2
_BEST = "best.safetensors"
_LATEST = "iteration-*.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How far a run is. Immutable.

    Args:
        iteration: Iterations done.
        epoch: Epochs done.
        position: Batches of the running epoch that are done.
        epoch_loss: Sum of the losses of the running epoch's images.
        epoch_images: Number of those.
        evaluated: Iterations after which the net was last evaluated.
        best_top1: Best top-1 so far; None before the first evaluation.
    """

    iteration: int = 0
    epoch: int = 0
    position: int = 0
    epoch_loss: float = 0.0
    epoch_images: int = 0
    evaluated: int = 0
    best_top1: float | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run at the end of an iteration. Immutable.

    Args:
        state: How far it is.
        identity: `Config.identity()` of the run.
        fingerprint: Of its dataset.
        weights: By parameter name.
        momenta: The optimizer's buffers by parameter name; empty without momentum.
    """

    state: TrainingState
    identity: Mapping[str, object]
    fingerprint: str
    weights: Mapping[str, np.ndarray]
    momenta: Mapping[str, np.ndarray]

    def encode(self) -> bytes:
        """The file's content; the same checkpoint always gives the same bytes.

        Raises:
            DivergedError: a weight or a momentum is not finite; the message names it.
        """
        tensors = {f"weights/{name}": array for name, array in self.weights.items()}
        tensors |= {f"momenta/{name}": array for name, array in self.momenta.items()}
        for name, array in tensors.items():
            if not np.isfinite(array).all():
                raise DivergedError(
                    f"{name} is not finite after iteration {self.state.iteration}: no checkpoint is written; "
                    "resume from the one before with a lower optimizer.lr"
                )
        run = {"state": dataclasses.asdict(self.state), "identity": self.identity, "fingerprint": self.fingerprint}
        text = json.dumps(run, sort_keys=True)
        # One entry only: safetensors writes several in an order that changes from run to run.
        entry = json.dumps({"version": _VERSION, "sha256": _digest(text, tensors), "run": text})
        return safetensors.numpy.save(tensors, {_METADATA_KEY: entry})

    @classmethod
    def decode(cls, data: bytes, source: str) -> Checkpoint:
        """Read a file's content.

        Args:
            data: The content.
            source: Its name, for messages.

        Raises:
            CheckpointError: truncated, damaged, of another version, or not a checkpoint.
        """
        try:
            tensors = safetensors.numpy.load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise CheckpointError(f"{source} is truncated or damaged, or not a checkpoint: {error}") from error
        entry = header.get("__metadata__", {}).get(_METADATA_KEY)
        if entry is None:
            raise CheckpointError(f"{source} is a safetensors file, but not a checkpoint of dnntrain")
        try:
            envelope = json.loads(entry)
            version, expected, text = envelope["version"], envelope["sha256"], envelope["run"]
            if version != _VERSION:
                raise CheckpointError(f"{source} has format version {version}; this dnntrain reads {_VERSION}")
            if _digest(text, tensors) != expected:
                raise CheckpointError(f"{source} is damaged: its content does not have the SHA-256 that was written")
            run = json.loads(text)
            state = TrainingState(**run["state"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{source} is damaged: {error!r} in its metadata") from error
        parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "momenta": {}}
        for key, array in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = array
        return cls(state, run["identity"], run["fingerprint"], parts["weights"], parts["momenta"])


class CheckpointStore:
    """The checkpoints of one run: the latest few, and the best. Owned by one thread.

    Args:
        folder: Made by the first save.
        keep: How many of the latest stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    @property
    def best_path(self) -> Path:
        """Where the best one is, if there was an evaluation."""
        return self._folder / _BEST

    def paths(self) -> list[Path]:
        """The latest ones, oldest first."""
        return sorted(self._folder.glob(_LATEST))

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove those that are no longer kept.

        Raises:
            DivergedError: it is not finite.
        """
        path = self._folder / _LATEST.replace("*", f"{checkpoint.state.iteration:010}")
        self._write(path, checkpoint)
        for old in self.paths()[: -self._keep]:
            old.unlink()
        return path

    def save_best(self, checkpoint: Checkpoint) -> Path:
        """Write the best checkpoint over the one that was the best before."""
        self._write(self.best_path, checkpoint)
        return self.best_path

    def load(self, path: Path) -> Checkpoint:
        """Read a checkpoint.

        Raises:
            CheckpointError: it is not there, or cannot be used; the message says which one could be.
        """
        try:
            return Checkpoint.decode(path.read_bytes(), str(path))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        except CheckpointError as error:
            older = [other for other in self.paths() if other < path]
            remedy = f"remove it to resume from {older[-1].name}" if older else "start again with --fresh"
            raise CheckpointError(f"{error}; {remedy}") from error

    def clear(self) -> None:
        """Remove every checkpoint."""
        for path in (*self.paths(), self.best_path):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, checkpoint: Checkpoint) -> None:
        data = checkpoint.encode()
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the machine stops, it is the old one or the new one and never part of either."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 - says what it does better than Path.replace
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is in the folder's data
    finally:
        os.close(folder)


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"\0{name} {array.dtype} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
