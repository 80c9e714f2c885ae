"""Every error that the library raises on purpose; nothing here knows of a backend, a net or gRPC.

DnncoreError
├── BadParamError (ValueError)         arguments that disagree with each other or with the operation's definition
├── NotSupportedError                  legal, but nothing here computes it; the message lists each candidate and why not
├── OwnerError (RuntimeError)          an object was used from a thread that does not own it
├── ClosedError (RuntimeError)         an object was used after close()
├── BackendUnavailableError            PyCUDA, the driver or the compiler is not there; the message says what to install
│   └── DeviceNotFoundError            the backend is there, the device is not
├── DeviceError                        the device said no
│   ├── OutOfMemoryError
│   └── DeviceFaultError               sticky: the device's context is lost
├── CompilationError                   a kernel did not compile
├── PackageError                       a model package that cannot be used
│   ├── ChecksumError                  its weights are not the ones that were written
│   └── UnknownLayerError              its graph names a layer that this version does not have
├── ModelImportError                   a model of another framework that cannot be imported; lists all that is in the way
├── PreprocessingError (ValueError)    bytes or an array that the package's preprocessing cannot turn into a tensor
├── ConfigError (ValueError)           a configuration file or an override that cannot be used
└── TrainingError                      training cannot go on, or cannot be taken up again
    ├── CheckpointError                    a checkpoint that is truncated, damaged or of another run
    └── DivergedError                      the loss or a weight is no longer finite
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BackendUnavailableError",
    "BadParamError",
    "CheckpointError",
    "ChecksumError",
    "ClosedError",
    "CompilationError",
    "ConfigError",
    "DeviceError",
    "DeviceFaultError",
    "DeviceNotFoundError",
    "DivergedError",
    "DnncoreError",
    "ModelImportError",
    "NotSupportedError",
    "OutOfMemoryError",
    "OwnerError",
    "PackageError",
    "PreprocessingError",
    "TrainingError",
    "UnknownLayerError",
]


class DnncoreError(Exception):
    """Root of the tree drawn in this module's docstring."""


class BadParamError(DnncoreError, ValueError):
    """Arguments disagree with each other or with the operation's definition."""


class NotSupportedError(DnncoreError):
    """The request is legal but no algorithm here fits it."""


class OwnerError(DnncoreError, RuntimeError):
    """An object was used from a thread that does not own it."""


class ClosedError(DnncoreError, RuntimeError):
    """An object was used after it was closed."""


class BackendUnavailableError(DnncoreError):
    """A backend's software is missing on this machine."""


class DeviceNotFoundError(BackendUnavailableError):
    """The named device does not exist."""


class DeviceError(DnncoreError):
    """The device reported a failure."""


class OutOfMemoryError(DeviceError):
    """The device has no room for an allocation."""


class DeviceFaultError(DeviceError):
    """A sticky fault: every later call on this device's context fails too."""


class CompilationError(DnncoreError):
    """A kernel did not compile; the message ends with the compiler's output."""


class PackageError(DnncoreError):
    """A model package is malformed."""


class ChecksumError(PackageError):
    """A model package's weights differ from its checksums."""


class UnknownLayerError(PackageError):
    """A model package's graph uses a layer type that this version does not have."""


class ModelImportError(DnncoreError):
    """A model of another framework cannot be imported.

    Args:
        what: Which model.
        problems: All that is in the way: a line for each node, tensor or input, by its name.
    """

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        few = len(problems) == 1
        super().__init__(
            f"{what}: {problems[0]}" if few else "\n  ".join([f"{what}: {len(problems)} problems", *problems])
        )
        self.problems = tuple(problems)


class PreprocessingError(DnncoreError, ValueError):
    """An input cannot be turned into the net's tensor."""


class ConfigError(DnncoreError, ValueError):
    """A configuration value is missing, unknown or out of range."""


class TrainingError(DnncoreError):
    """Training cannot go on, or cannot be taken up again."""


class CheckpointError(TrainingError):
    """A checkpoint is truncated, damaged or of another run."""


class DivergedError(TrainingError):
    """The loss or a weight is no longer finite."""
