"""How nodes are computed: which algorithms, how much scratch memory, and where that lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dnncore import Handle
from dnncore.cuda.absent import AbsentDevice
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.nn import BATCH, Executor, Graph, NetBuilder, Parameters, feeding
from dnncore.nn.estimate import estimate
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference
from dnncore.nn.schedule import TOLERANCE, Schedule, lower, schedule
from dnncore.nn.zoo import alexnet, googlenet, mobilenet_v2, resnet50, vgg16
from tests.nn.nets import weightless

_UNLIMITED = 1 << 60


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A net with convolutions of many kinds, as it is served."""
    return for_inference(weightless(googlenet())).graph


def _algorithms(found: Schedule) -> list[str]:
    return [one.algorithms for one in found.computations]


def _assert_apart(found: Schedule) -> None:
    """At every step scratch memory is where no value lies."""
    offsets, lifetimes = found.placement.offsets, found.placement.lifetimes
    for step, one in enumerate(found.computations):
        live = [offsets[name] for name, life in lifetimes.items() if life.first <= step <= life.last and life.nbytes]
        assert one.scratch_bytes <= min(live), one.node.name
        assert one.scratch_bytes <= found.placement.nbytes


def test_scratch_memory_lies_where_values_leave_room(graph: Graph) -> None:
    fastest = estimate(graph, H200, 256, _UNLIMITED)
    values = estimate(graph, H200, 256, 0).placement.nbytes
    _assert_apart(fastest)
    assert fastest.placement.nbytes < values + fastest.scratch_bytes


def test_a_limit_changes_only_the_nodes_that_exceed_it(graph: Graph) -> None:
    fastest, tight = (estimate(graph, H200, 256, limit) for limit in (_UNLIMITED, 0))
    _assert_apart(tight)
    assert tight.scratch_bytes < fastest.scratch_bytes / 20
    pairs = list(zip(fastest.computations, tight.computations, strict=True))
    assert all(one.algorithms == other.algorithms for one, other in pairs if one.scratch_bytes == 0)
    assert all(one.seconds <= other.seconds for one, other in pairs)
    assert any(one.algorithms != other.algorithms for one, other in pairs)


def test_without_a_limit_memory_is_saved_where_it_costs_next_to_nothing(graph: Graph) -> None:
    for batch in (256, 1):
        fastest, chosen = estimate(graph, H200, batch, _UNLIMITED), estimate(graph, H200, batch)
        assert chosen.seconds <= fastest.seconds * (1 + TOLERANCE)
        assert chosen.placement.nbytes <= fastest.placement.nbytes
    assert _algorithms(chosen) == _algorithms(fastest)  # of one image, nobody misses what the fastest take


@pytest.mark.parametrize(
    ("net", "precision", "nbytes"),
    [
        (
            googlenet,
            DType.FLOAT32,
            1_380_698_112,
        ),  # 1782 MB with the first layer's spectra in parts as large as other layers'
        (
            mobilenet_v2,
            DType.FLOAT16,
            706_478_080,
        ),  # its first blocks are fastest layer by layer: 462 MB on chip, a quarter slower
        (
            resnet50,
            DType.FLOAT16,
            978_632_704,
        ),  # images, x and y of a block in one kernel: 822 MB layer by layer, where y may lie in x's place, and slower
    ],
)
def test_blocks_are_no_larger_than_they_were(net: Callable[[], Graph], precision: DType, nbytes: int) -> None:
    assert estimate(for_inference(weightless(net()), precision).graph, H200, 256).placement.nbytes == nbytes


def test_vgg16_takes_less_than_its_two_largest_values_and_its_images() -> None:
    """Of which 6731 MB are in fp32: what is pooled is computed part by part of the batch there, and never stored in fp16."""
    model = weightless(vgg16())
    sizes = {DType.FLOAT32: 5_225_119_744, DType.FLOAT16: 2_215_772_160}
    for precision, nbytes in sizes.items():
        assert estimate(for_inference(model, precision).graph, H200, 256).placement.nbytes == nbytes


def _net() -> Graph:
    net = NetBuilder("convolutions")
    x = net.input("x", (BATCH, 8, 12, 12))
    for number in range(3):
        x = net.relu(f"relu{number}", net.convolution(f"conv{number}", x, 8, 3, padding=1))
    return net.build(net.inner_product("logits", net.global_pooling("pool", x), 3))


@pytest.mark.parametrize("limit", [0, None])
def test_an_executor_within_a_limit_gives_the_same(handle: Handle, limit: int | None) -> None:
    graph = _net()
    model = for_inference(Model(graph, graph.initialize(1)))
    x = np.random.default_rng(0).standard_normal((5, 8, 12, 12)).astype(np.float32)
    found = {}
    with Parameters.upload(handle, model.graph, model.weights) as parameters:
        for name, bytes_ in (("free", _UNLIMITED), ("limited", limit)):
            with Executor(model.graph, handle, parameters, 5, limit_bytes=bytes_) as executor:
                found[name] = executor.run({"x": x})["logits"].copy()
                assert np.array_equal(executor.run({"x": x})["logits"], found[name])
                assert executor.arena_bytes == executor.schedule.placement.nbytes
    np.testing.assert_allclose(found["limited"], found["free"], rtol=1e-4, atol=1e-5)


def test_a_batch_in_parts_is_the_batch(handle: Handle) -> None:
    graph = _net()
    model = for_inference(Model(graph, graph.initialize(1)))
    x = np.random.default_rng(0).standard_normal((5, 8, 12, 12)).astype(np.float32)
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, 5) as executor,
    ):
        expected = executor.run({"x": x})["logits"].copy()
        for one in executor.schedule.computations:
            if one.plans:
                lower(handle, replace(one, parts=3 if one.node.operator.batched else 1), executor._tensors)
        np.testing.assert_allclose(executor.tensor("logits").numpy(), expected, rtol=1e-5, atol=1e-6)


def test_images_that_are_cast_for_one_layer_do_not_lie_in_memory_twice() -> None:
    found = estimate(for_inference(weightless(alexnet()), DType.FLOAT16).graph, H200, 256)
    cast, convolution = found.computations[:2]
    assert (cast.algorithms, convolution.algorithms) == ("-", "interleave+implicit_gemm_wgmma_rows")
    images, sums = 256 * 3 * 224 * 224 * 4, 256 * 64 * 55 * 55 * 2
    assert found.placement.nbytes < images + images / 2 + sums
    _assert_apart(found)


def test_what_is_made_part_by_part_gives_the_same(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _net()
    model = for_inference(Model(graph, graph.initialize(1)), DType.FLOAT16)
    x = np.random.default_rng(0).standard_normal((5, 8, 12, 12)).astype(np.float32)
    found = []
    with Parameters.upload(handle, model.graph, model.weights) as parameters:
        for most in (1 << 30, 2 * 8 * 12 * 12 * 2):  # everything, and two images
            monkeypatch.setattr(feeding, "_OF_L2", most / handle.device.figures.l2_bytes)
            with Executor(model.graph, handle, parameters, 5) as executor:
                found.append(executor.run({"x": x})["logits"].copy())
                assert executor.schedule.computations[1].parts == (1 if len(found) == 1 else 3)
                assert np.array_equal(executor.run({"x": x})["logits"], found[-1])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-2, atol=1e-3)


def test_a_table_has_a_line_for_each_node() -> None:
    graph = _net()
    with Handle(AbsentDevice(H200)) as handle:
        title, *rows, total = schedule(graph, handle, 4).table().splitlines()
    assert title.split() == ["layer", "operator", "algorithm", "parts", "scratch", "B", "us"]
    assert [row.split()[0] for row in rows] == [node.name for node in graph.nodes]
    assert "ms estimated" in total
