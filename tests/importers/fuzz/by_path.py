"""What is fuzzed of files that are imported by their paths, as others lie beside them or their formats need it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.errors import ConfigError
from tests.importers.fuzz.seeds import Seed, Seeds

__all__ = ["external", "hdf5", "solver"]


def _folder() -> Path:
    """Where a worker writes what is imported by its path; gone once the worker is, unless a case ended it."""
    return Path(_FOLDERS.setdefault("", tempfile.TemporaryDirectory(prefix="dnncore-fuzz-")).name)


_FOLDERS: dict[str, tempfile.TemporaryDirectory[str]] = {}


def solver() -> Seeds:
    """Settings of training runs as they come to dnntrain, with a net beside them, which is damaged in one."""
    from dnncore.train.caffe_solver import solver_table
    from tests.importers.caffe.files import layer

    path = _folder() / "solver.prototxt"
    settings = (
        'data_param { source: "images" backend: LMDB batch_size: 4 } transform_param { crop_size: 8 mirror: true }'
    )
    net = f'layer {{ name: "d" type: "Data" top: "data" top: "label" {settings} }}\n'
    net += layer("InnerProduct", "fc", "data", "inner_product_param { num_output: 3 }")
    net += layer("SoftmaxWithLoss", "loss", "fc label", "loss_param { normalization: VALID }")
    (path.parent / "net.prototxt").write_text(net)
    (path.parent / "images").mkdir(exist_ok=True)
    common = f'net: "{path.parent}/net.prototxt" base_lr: 0.01 max_iter: 450 display: 20 snapshot: 100 snapshot_prefix: "runs/"'
    texts = (
        'lr_policy: "step" gamma: 0.1 stepsize: 100 momentum: 0.9 weight_decay: 0.0005 solver_mode: GPU device_id: 1',
        'lr_policy: "multistep" gamma: 0.5 stepvalue: 100 stepvalue: 300 type: "Adam" momentum2: 0.99 delta: 1e-8 iter_size: 2',
        'lr_policy: "inv" gamma: 0.0001 power: 0.75 solver_type: RMSPROP rms_decay: 0.98 regularization_type: "L1"',
        'lr_policy: "poly" power: 1 clip_gradients: 10 random_seed: 7 test_iter: 10 test_interval: 50 test_state { stage: "a" }',
    )

    def load(damaged: bytes) -> object:
        path.write_bytes(damaged)
        return solver_table(path)

    def of_net(damaged: bytes) -> object:
        (path.parent / "damaged.prototxt").write_bytes(damaged)
        path.write_text(common.replace("net.prototxt", "damaged.prototxt") + texts[1])
        return solver_table(path)

    small = [Seed(f"solver {i}", f"{common} {text}".encode(), load, ConfigError) for i, text in enumerate(texts)]
    return Seeds([*small, Seed("its net", net.encode(), of_net, ConfigError)], ())


def hdf5() -> Seeds:
    """Weights of Caffe in HDF5, as old files of that format have them and as new ones do, whole and in packed chunks."""
    import h5py

    from dnncore.importers.caffe import import_caffe
    from tests.importers.caffe.files import data, layer, random_blobs

    text = data(1, 2, 4, 4) + layer("Convolution", "c", "data", "convolution_param { num_output: 2 kernel_size: 3 }")
    text += layer("BatchNorm", "n", "c") + layer("InnerProduct", "ip", "n", "inner_product_param { num_output: 3 }")
    path = _folder() / "net.caffemodel.h5"

    def load(damaged: bytes) -> object:
        path.write_bytes(damaged)
        return import_caffe(text.encode(), path)

    def stored(version: str, **how: Any) -> bytes:
        file = io.BytesIO()
        with h5py.File(file, "w", libver=version) as root:
            for name, blobs in random_blobs(text).items():
                for number, blob in enumerate(blobs):
                    packed = how if blob.ndim > 1 else {}
                    root.create_dataset(f"data/{name}/{number}", data=blob, **packed)
        return file.getvalue()

    ways: dict[str, dict[str, Any]] = {
        "whole": {},
        "packed": {"chunks": True, "compression": "gzip", "shuffle": True},
        "checked": {"fletcher32": True},
    }
    return Seeds(
        [
            Seed(f"{version}, {name}", stored(version, **how), load)
            for version in ("earliest", "latest")
            for name, how in ways.items()
        ],
        (),
    )


def external() -> Seeds:
    """Models whose weights lie in files beside them; the model is damaged, or that file."""
    from onnx import TensorProto, helper

    from dnncore.importers.onnx import import_onnx
    from tests.importers.onnx.nets import model_of

    model, weights = _folder() / "model.onnx", _folder() / "model.onnx.data"
    arrays: dict[str, np.ndarray] = {
        "w": np.ones((2, 3, 3, 3), np.float32),
        "m": np.ones((4, 2), np.float32),
        "h": np.ones(4, np.float16),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "b"], ["y"], transB=1),
        helper.make_node("Cast", ["h"], ["b"], to=TensorProto.FLOAT),
    ]
    proto = model_of([nodes[-1], *nodes[:-1]], {"x": ("N", 3, 6, 6)}, arrays)
    content = b""
    for tensor in proto.graph.initializer:
        raw, tensor.data_location = tensor.raw_data, TensorProto.EXTERNAL
        for key, value in (
            ("location", weights.name),
            ("offset", len(content)),
            ("length", len(raw)),
            ("checksum", "0"),
        ):
            tensor.external_data.add(key=key, value=str(value))
        tensor.ClearField("raw_data")
        content += raw
    intact = proto.SerializeToString()

    def load(damaged: bytes) -> object:
        model.write_bytes(damaged)
        weights.write_bytes(content)
        return import_onnx(model)

    def with_weights(damaged: bytes) -> object:
        model.write_bytes(intact)
        weights.write_bytes(damaged)
        return import_onnx(model)

    load(intact)  # what is imported late has no room once a worker is bounded
    return Seeds([*[Seed("model", intact, load)] * 3, Seed("data", content, with_weights)], ())
