"""What is fuzzed: whole files to begin with, and what is done with a damaged one.

An importer, and what makes files for it, is imported when it is asked for: a worker has one kind of files.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dnncore.errors import ModelImportError
from tests.importers.fuzz.by_path import external, hdf5, solver
from tests.importers.fuzz.seeds import Seed, Seeds

__all__ = ["TARGETS", "onnx_files"]


def onnx_files() -> list[bytes]:
    """Two models with shape arithmetic, constants and the operators of classifiers."""
    from onnx import helper

    from tests.importers.onnx.nets import model_of

    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "zero", "one"], ["n"]),
        node("Concat", ["n", "minus"], ["t"], axis=0),
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]),
        node("Reshape", ["p", "t"], ["f"]),
        node("Gemm", ["f", "m"], ["g"], transB=1),
        node("Softmax", ["g"], ["y"], axis=1),
    ]
    constants: dict[str, np.ndarray] = {
        "w": np.ones((2, 3, 3, 3), np.float32),
        "m": np.ones((4, 18), np.float32),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "minus": np.array([-1], np.int64),
    }
    resize = node("Resize", ["x", "", "s"], ["r"], mode="linear")
    pad = node("Pad", ["r", "p"], ["y"], mode="edge")
    more: dict[str, np.ndarray] = {
        "s": np.array([1, 1, 2, 1.5], np.float32),
        "p": np.array([0, 0, 1, 1, 0, 0, 2, 0], np.int64),
    }
    return [
        model_of(nodes, {"x": ("N", 3, 8, 8)}, constants).SerializeToString(),
        model_of([resize, pad], {"x": ("N", 2, 4, 4)}, more).SerializeToString(),
    ]


def _onnx() -> Seeds:
    """The two above, the small ones of onnx.backend.test, and whole networks: light ones, and a trained classifier."""
    import onnx

    from dnncore.importers.onnx import import_onnx

    def is_imported(seed: Seed) -> bool:
        try:
            import_onnx(seed.data)
        except ModelImportError:
            return False
        return True

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    paths = [
        path for kind in ("pytorch-converted", "pytorch-operator") for path in (folder / kind).glob("*/model.onnx")
    ]
    small = [Seed(f"onnx_files[{i}]", one, import_onnx) for i, one in enumerate(onnx_files())]
    small += [Seed(path.parent.name, path.read_bytes(), import_onnx) for path in sorted(paths)]
    nets = sorted((folder / "light").glob("*.onnx"))
    if (found := importlib.util.find_spec("rapidocr_onnxruntime")) is not None and found.origin is not None:
        nets.append(Path(found.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    return Seeds(list(filter(is_imported, small)), [Seed(path.stem, path.read_bytes(), import_onnx) for path in nets])


def _caffe() -> Seeds:
    """Definitions of the nets people use, weights of all generations, and a mean image."""
    from dnncore.importers.caffe import import_caffe, read_mean
    from tests.importers.caffe.files import blob, caffemodel, data, layer, random_blobs
    from tests.importers.caffe.nets import NETS
    from tests.importers.caffe.test_generations import V0, V1, V2

    text = data(1, 2, 4, 4) + layer("Convolution", "c", "data", "convolution_param { num_output: 2 kernel_size: 3 }")
    text += layer("BatchNorm", "n", "c") + layer("InnerProduct", "ip", "n", "inner_product_param { num_output: 3 }")
    blobs = random_blobs(text)

    def with_weights(damaged: bytes) -> object:
        return import_caffe(text.encode(), damaged)

    small = [
        Seed(f"weights {how} {generation}", caffemodel(blobs, how, generation), with_weights)
        for how in ("shape", "legacy", "double", "raw16")
        for generation in (0, 1, 2)
    ]
    small.append(Seed("mean", blob(blobs["c"][0][:1], "legacy").SerializeToString(), read_mean))
    small += [Seed(f"prototxt {i}", one.encode(), import_caffe) for i, one in enumerate((text, V0, V1, V2))]
    large = [Seed(f"{name}.prototxt", make(16).encode(), import_caffe) for name, (make, *_) in NETS.items()]
    return Seeds(small, large)


def _abort(_data: bytes) -> None:
    os.abort()


def _spin(_data: bytes) -> None:
    while True:
        pass


def _swell(_data: bytes) -> None:
    bytearray(4 << 30)


def _fail(_data: bytes) -> None:
    raise KeyError("shape")


def _faults() -> Seeds:
    """Importers with everything that is looked for, to see that it is found."""
    return Seeds([Seed(one.__name__, b"file", one) for one in (_abort, _swell, _fail, _spin)], ())


TARGETS: dict[str, Callable[[], Seeds]] = {
    "onnx": _onnx,
    "external": external,
    "caffe": _caffe,
    "hdf5": hdf5,
    "solver": solver,
    "faults": _faults,
}
"""Files by kind; made when they are asked for."""
