"""Each pass by itself on each net of the zoo: the net gives what it gave without it, within the tolerance that the pass states.

The reference backend computes two images of few places, in 15 s of processor time for all nets. A net goes through the passes in
their order, and each is compared with what was before it, so that every output is computed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.nn import Executor, Graph, Parameters
from dnncore.nn.calibration import calibrate
from dnncore.nn.model import Model
from dnncore.nn.passes import PASSES, REGISTRY, applied_passes, fuse_bottlenecks, fuse_cast, in_precision, quantize
from dnncore.nn.zoo import AUXILIARY, ZOO
from dnncore.preprocessing import Preprocessing

SHAPES = {"alexnet": (3, 63, 63), "lenet": (1, 8, 8)}
"""Of others than 32 x 32: the least that they take."""

_EVERYWHERE = {
    *("fuse_convolutions", "fuse_inner_products", "quantize", "in_precision", "channels_last"),
    *("from_pixels", "fuse_pixels", "fuse_cast", "rank_classes"),
}
CHANGED = {
    "alexnet": _EVERYWHERE | {"drop_identities"},
    "googlenet": _EVERYWHERE | {"drop_unused", "drop_identities", "fold_batch_norms", "merge_siblings"},
    "lenet": _EVERYWHERE | {"fuse_pooling"},
    "mobilenet_v2": _EVERYWHERE | {"drop_identities", "fold_batch_norms", "fuse_inverted_residuals"},
    "resnet18": _EVERYWHERE | {"fold_batch_norms"},
    "resnet50": _EVERYWHERE | {"fold_batch_norms", "fuse_bottlenecks"},
    "vgg16": _EVERYWHERE | {"drop_identities", "fuse_pooling"},
}
"""The passes that find something to do in a net; the others leave it as it is."""

SAME_SUMS_HERE = {"from_pixels", "fuse_inverted_residuals", "fuse_pooling"}
"""Passes whose net computes the same sums in the same order on the reference backend, and from images without a mean image: to the
bit, though elsewhere they may differ in the last."""

K = 3
"""Classes that are ranked."""


class Step(NamedTuple):
    """A pass, the model before it, and behind it; whether the next pass goes on from there."""

    name: str
    before: Model
    after: Model
    goes_on: bool = True

    @property
    def finds_nothing(self) -> bool:
        """Whether the pass left all as it was."""
        before, after = self.before, self.after
        same = after.graph == before.graph
        return same and all(array is before.weights[name] for name, array in after.weights.items())


def _model(name: str) -> Model:
    """Seeded weights, and statistics as of training: no mean is 0, no variance 1. GoogLeNet has heads that nobody asks for."""
    graph = AUXILIARY.get(name, ZOO[name])(10, SHAPES.get(name, (3, 32, 32)))
    graph = graph.rewritten(graph.nodes, outputs=graph.outputs[:1])
    rng, weights = np.random.default_rng(0), graph.initialize(0)
    for each, array in weights.items():
        if each.endswith((".variance", ".scale")):
            weights[each] = rng.uniform(0.5, 1.5, array.shape).astype(np.float32)
        elif each.endswith((".mean", ".bias")):
            weights[each] = rng.normal(0, 0.2, array.shape).astype(np.float32)
    return Model(graph, weights)


def _preprocessing(graph: Graph) -> Preprocessing:
    _, channels, height, width = graph.inputs[0].spec(1).shape
    middle, spread = (0.5,) * channels, (0.25,) * channels
    return Preprocessing.squash("gray" if channels == 1 else "rgb", width, height, 1 / 255, middle, spread)


def _steps(model: Model, images: np.ndarray, handle: Handle, preprocessing: Preprocessing) -> Iterator[Step]:
    """The passes that the net goes through in float16, in order, and what branches off in between: int8, and bfloat16."""
    before = model
    for name, after in applied_passes(model, DType.FLOAT16, normalization=preprocessing.normalization, ranked=K):
        yield Step(name, before, after)
        if name == list(PASSES)[-1]:
            calibration = calibrate(after, [{"data": images}], handle)
            yield Step(quantize.__name__, after, quantize(after, calibration), goes_on=False)
            yield Step(in_precision.__name__, after, in_precision(after, DType.BFLOAT16), goes_on=False)
        if name == fuse_bottlenecks.__name__:  # as of a net that does not read pixels
            yield Step(fuse_cast.__name__, after, fuse_cast(after), goes_on=False)
        before = after


def _run(handle: Handle, model: Model, images: np.ndarray) -> dict[str, np.ndarray]:
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, len(images)) as executor,
    ):
        return {name: array.copy() for name, array in executor.run({"data": images}).items()}


@pytest.mark.parametrize("net", ZOO)
def test_a_net_gives_what_it_gave_before_each_pass(net: str) -> None:
    model = _model(net)
    preprocessing = _preprocessing(model.graph)
    _, channels, height, width = model.graph.inputs[0].spec(1).shape
    pixels = np.random.default_rng(1).integers(0, 256, (2, height, width, channels), np.uint8)
    images = preprocessing.normalize(pixels)
    (logits,) = model.graph.outputs
    changed = set()
    with Handle("cpu") as handle:
        known, expected = model, _run(handle, model, images)
        assert np.ptp(expected[logits], axis=0).max() > 0.01 * np.abs(expected[logits]).max()  # it tells images apart
        for step in _steps(model, images, handle, preprocessing):
            assert step.before is known
            found = expected
            if not step.finds_nothing:
                changed.add(step.name)
                reads_pixels = step.after.graph.inputs[0].dtype is DType.UINT8
                found = _run(handle, step.after, pixels if reads_pixels else images)
                _assert_near(step, found[logits], expected[logits])
            if step.name == "channels_last":  # sums may be in another order, but of the same: nothing else has changed
                assert replace(step.after.graph, layouts={}) == step.before.graph
                assert all(step.after.weights[name] is array for name, array in step.before.weights.items())
            if step.name == "rank_classes":
                order = np.argsort(-found[logits], axis=1, kind="stable")[:, :K]
                assert np.array_equal(found[f"{logits}.classes"], order)
                assert np.array_equal(found[f"{logits}.values"], np.take_along_axis(found[logits], order, 1))
            if step.goes_on:
                known, expected = step.after, found
    assert changed == CHANGED[net]


def _assert_near(step: Step, found: np.ndarray, expected: np.ndarray) -> None:
    relative = REGISTRY[step.name].tolerance.relative(step.before.graph, step.after.graph)
    if step.name in SAME_SUMS_HERE:
        relative = 0.0
    error = np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max()
    assert error <= relative, f"{step.name}: {error:.2g} of the largest output; {relative:.2g} is stated"


def test_every_pass_has_a_net_in_which_it_finds_something_to_do() -> None:
    assert set().union(*CHANGED.values()) == REGISTRY.keys()
    assert CHANGED.keys() == ZOO.keys()


def test_a_tolerance_grows_with_the_nodes_and_goes_by_the_narrowest_type() -> None:
    model = _model("lenet")
    narrow = in_precision(model, DType.FLOAT16)
    tolerance = REGISTRY["in_precision"].tolerance
    assert tolerance.relative(model.graph, model.graph) == 4 * 10 * 2**-24
    assert tolerance.relative(model.graph, narrow.graph) == 4 * 10 * 2**-11
    assert tolerance.relative(model.graph, in_precision(model, DType.BFLOAT16).graph) == 4 * 10 * 2**-8
    assert tolerance.relative(narrow.graph, narrow.graph) == 4 * 12 * 2**-11
    assert REGISTRY["drop_unused"].tolerance.relative(model.graph, narrow.graph) == 0


def test_the_page_about_nets_states_what_the_registry_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "nets.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|[^|]*\|$", page, re.MULTILINE))
    assert list(rows) == list(REGISTRY)
    stated = {name: each.tolerance.roundings for name, each in REGISTRY.items()}
    assert rows == {name: f"{count} roundings" if count else "no bit" for name, count in stated.items()}
