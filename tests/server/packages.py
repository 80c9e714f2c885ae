"""Small real model packages for the tests, made from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dnnserve.engine.net import ServedModel

from dnncore import Handle
from dnncore.nn import Executor, Package, Parameters, zoo
from dnncore.preprocessing import Preprocessing

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_package(name: str = "digits", seed: int = 5) -> Package:
    net = zoo.lenet(10, (1, 8, 8))
    preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 16, (0.25,), (0.5,))
    return Package(name, net, net.initialize(seed), preprocessing, LABELS)


def served(package: Package | None = None) -> ServedModel:
    """What a host is given of a package."""
    package = make_package() if package is None else package
    return ServedModel(package.serving_model, package.preprocessing)


def make_repository(root: Path) -> Path:
    """digits/1, digits/2 and faces/7."""
    for name, version, seed in (("digits", 1, 1), ("digits", 2, 2), ("faces", 7, 3)):
        make_package(name, seed).save(root / name / str(version))
    return root


def probabilities(package: Package, rows: np.ndarray) -> np.ndarray:
    """What the server must answer for rows [n, C, H, W], by the reference backend: [n, K]."""
    graph = package.serving_graph
    with (
        Handle("cpu") as handle,
        Parameters.upload(handle, graph, package.weights) as parameters,
        Executor(graph, handle, parameters, len(rows)) as executor,
    ):
        return executor.run({package.input.name: rows})[graph.outputs[0]].copy()
