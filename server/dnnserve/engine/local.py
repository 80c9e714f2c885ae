"""Devices of this process, and the models that they may load."""

from __future__ import annotations

from dnnserve.engine.net import NetHost, ServedModel, Terms
from dnnserve.envelope import ModelKey

__all__ = ["LocalEngines"]


class LocalEngines:
    """Opens devices in this process: a `HostFactory`. Thread-safe: operations of `_models` are atomic.

    Args:
        terms: How models are loaded.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._models: dict[ModelKey, ServedModel] = {}

    def put(self, model: ModelKey, served: ServedModel) -> None:
        """Keep a model to be loaded, now or when a device is opened again."""
        self._models[model] = served

    def drop(self, model: ModelKey) -> None:
        """Keep a model no more. A second call does nothing."""
        self._models.pop(model, None)

    def set_log_level(self, level: str) -> None:
        """Devices are this process's, and log as it does."""

    def __call__(self, device: str) -> NetHost:
        """Open a device for the calling thread."""
        return NetHost(device, self._models, terms=self._terms)

    def close(self) -> None:
        """Keep nothing more."""
        self._models.clear()
