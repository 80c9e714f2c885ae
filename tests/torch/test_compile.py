"""Compiled models: PyTorch's tensors in and out, one executor for each number of images; and packages made of models."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dnncore.torch as dt
from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError, ModelImportError, OwnerError, PackageError
from dnncore.nn import Executor, Package, Parameters
from dnncore.testing import unit_roundoff
from dnncore.torch.export import compiled
from tests.torch.nets import NETS
from tests.torch.test_export import assert_near

Tensor = Any


@pytest.mark.parametrize("name", ["residual", "inception", "arithmetic"])
def test_a_compiled_model_gives_what_the_model_gives(name: str) -> None:
    net = NETS[name].build()
    with dt.compile(net, NETS[name].inputs(1)) as run:
        for batch in (2, 5, 2):
            inputs = NETS[name].inputs(batch)
            with torch.no_grad():
                assert_near(run(*inputs), net(*inputs), 40)


@pytest.fixture(scope="module")
def residual() -> nn.Module:
    return NETS["residual"].build()


def _inputs(batch: int) -> Tensor:
    return NETS["residual"].inputs(batch)[0]


JUMP = {"steps", "choices"}
"""Nets of which a rounding changes results altogether."""


def test_convolutions_are_fused_and_16_bits_lie_inside(residual: nn.Module) -> None:
    with dt.compile(residual, _inputs(1), precision="bfloat16") as run:
        kinds = [node.operator.kind for node in run.graph.nodes]
        assert "batch_norm" not in kinds
        assert "fused_convolution" in kinds
        assert run.graph.constant["conv1.weight"].dtype is DType.BFLOAT16
        assert run(_inputs(3)).dtype is torch.float32


@pytest.mark.parametrize("name", [name for name in NETS if name not in JUMP])
def test_in_16_bits_results_are_near(name: str) -> None:
    net, inputs = NETS[name].build(), NETS[name].inputs(3)
    with dt.compile(net, NETS[name].inputs(1), precision="float16") as run, torch.no_grad():
        allowed = 4 * len(run.graph.nodes) * unit_roundoff(DType.FLOAT16)
        for found, expected in zip(pytree.tree_leaves(run(*inputs)), pytree.tree_leaves(net(*inputs)), strict=True):
            if expected is not None:
                assert float((found - expected).abs().max()) <= allowed * float(expected.abs().max())


def test_results_are_the_callers_and_inputs_may_have_any_strides(residual: nn.Module) -> None:
    with dt.compile(residual, _inputs(1)) as run, torch.no_grad():
        x = _inputs(2)
        first = run(x)
        kept = first.clone()
        run(2 * x)
        assert torch.equal(first, kept)
        assert torch.equal(run(x.to(memory_format=torch.channels_last)), kept)
        assert not run(x.requires_grad_()).requires_grad


def test_more_images_than_max_batch_are_computed_in_parts(residual: nn.Module) -> None:
    with dt.compile(residual, _inputs(1), max_batch=2) as run, torch.no_grad():
        assert_near(run(_inputs(5)), residual(_inputs(5)), 40)
        assert sorted(run._executors) == [1, 2]
    with pytest.raises(BadParamError, match="max_batch 0 must be 1 or more"):
        dt.compile(residual, _inputs(1), max_batch=0)
    with pytest.raises(BadParamError, match="cannot be put together of parts"):
        dt.compile(NETS["arithmetic"].build(), NETS["arithmetic"].inputs(1), max_batch=2)


def test_the_executor_that_was_not_used_for_longest_is_given_up(
    residual: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MOST_EXECUTORS", 2)
    with dt.compile(residual, _inputs(1)) as run:
        for batch in (1, 2, 1, 3):
            run(_inputs(batch))
        assert list(run._executors) == [1, 3]


def test_what_the_model_was_not_compiled_for_is_refused(residual: nn.Module) -> None:
    run = dt.compile(residual, _inputs(1))
    for x, message in (
        (
            _inputs(2).double(),
            r"x is torch.float64\[2, 3, 7, 6\] on cpu; the model was compiled for torch.float32\[N, 3",
        ),
        (_inputs(2)[:, :, 1:], r"x is torch.float32\[2, 3, 6, 6\]"),
        (_inputs(2).to("meta"), r"on meta; .* on cpu"),
        (_inputs(2)[:0], r"have \[0\] images"),
    ):
        with pytest.raises(BadParamError, match=message):
            run(x)
    with pytest.raises(BadParamError, match="takes 1 tensors, 2 are given"):
        run(_inputs(1), _inputs(1))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run(_inputs(1))
        except OwnerError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1
    run.close()
    run.close()
    with pytest.raises(ClosedError, match="compiled model 'Residual' was closed"):
        run(_inputs(1))
    with pytest.raises(BadParamError, match="the example is on meta"):
        dt.compile(residual, _inputs(1).to("meta"))


def test_a_package_is_saved_loaded_and_run(handle: Handle, residual: nn.Module, tmp_path: Path) -> None:
    labels = ["ant", "bee", "cat", "dog", "elk"]
    saved = dt.save_package(residual, _inputs(1), tmp_path / "animals" / "3", labels=labels)
    package = Package.load(tmp_path / "animals" / "3")
    assert package.graph == saved.graph
    assert (package.name, package.labels, package.preprocessing) == ("animals", tuple(labels), None)
    assert package.provenance["model"] == "tests.torch.nets.Residual"
    graph, x = package.serving_graph, _inputs(3)
    with (
        Parameters.upload(handle, graph, package.weights) as parameters,
        Executor(graph, handle, parameters, 3) as executor,
        torch.no_grad(),
    ):
        found = executor.run({"x": x.numpy()})["probabilities"]
        assert_near(torch.from_numpy(np.array(found)), residual(x).softmax(1), 40)


@pytest.mark.parametrize("fuse", [False, True])
def test_a_net_that_was_converted_and_trained_is_compiled_and_saved(fuse: bool, tmp_path: Path) -> None:
    plain, net = NETS["residual"].build(), NETS["residual"].build()
    conversion = dt.convert(net.train(), fuse=fuse)
    assert bool(conversion.fused) == fuse
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    nn.functional.cross_entropy(net(_inputs(4)), torch.arange(4)).backward()
    optimizer.step()
    classes = [type(module) for module in net.modules()]
    with dt.compile(net, _inputs(1)) as run:
        found = run(_inputs(3))
    saved = dt.save_package(net, _inputs(1), tmp_path / "converted")
    assert [type(module) for module in net.modules()] == classes
    assert all(module.training for module in net.modules())

    with torch.no_grad():
        before = plain(_inputs(3))
        plain.load_state_dict(net.state_dict())
        after = plain(_inputs(3))
    assert float((after - before).abs().max()) > 0.01
    assert_near(found, after, 40)
    expected = dt.save_package(plain, _inputs(1), tmp_path / "plain", name="converted")
    assert saved.graph == expected.graph
    for name, weight in expected.weights.items():
        np.testing.assert_array_equal(saved.weights[name], weight)


class _CallsOurs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return dt.softmax(x, 1)


def test_what_calls_our_functions_itself_cannot_be_exported_and_hears_what_can() -> None:
    with pytest.raises(ModelImportError, match="use PyTorch's functions and PyTorch's modules"):
        dt.compile(_CallsOurs(), _inputs(1))


def test_labels_that_do_not_fit_are_refused(residual: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="package 'net': 2 labels, but the net's output has shape"):
        dt.save_package(residual, _inputs(1), tmp_path / "net", labels=["yes", "no"])
    assert not (tmp_path / "net").exists()
    assert dt.save_package(residual, _inputs(1), tmp_path / "net", name="other").name == "other"
    assert dt.save_package(residual, _inputs(1), tmp_path / "net", precision="float16").precision is DType.FLOAT16
    assert Package.load(tmp_path / "net").precision is DType.FLOAT16
    with pytest.raises(PackageError, match="int8 needs a calibration"):
        dt.save_package(residual, _inputs(1), tmp_path / "net", precision="int8")
