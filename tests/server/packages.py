"""Small real model packages for the tests, made from a seed."""

from __future__ import annotations

from pathlib import Path

from dnncore.nn import Package, zoo
from dnncore.preprocessing import Preprocessing

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_package(name: str = "digits", seed: int = 5) -> Package:
    net = zoo.lenet(10, (1, 8, 8))
    preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 16, (0.25,), (0.5,))
    return Package(name, net, net.initialize(seed), preprocessing, LABELS)


def make_repository(root: Path) -> Path:
    """digits/1, digits/2 and faces/7."""
    for name, version, seed in (("digits", 1, 1), ("digits", 2, 2), ("faces", 7, 3)):
        make_package(name, seed).save(root / name / str(version))
    return root
