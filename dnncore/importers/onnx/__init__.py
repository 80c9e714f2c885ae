"""ONNX models as graphs and weights.

::

    model = import_onnx("resnet50.onnx")
    Executor(model.graph, handle, Parameters.upload(handle, model.graph, model.weights), batch=8)

Each operator has a rule (`rules`), which makes nodes of ours of it, or is computed at import where its operands are known
(`folding`). Needs the package onnx for its protobuf classes: `pip install dnncore[onnx]`.
"""

from dnncore.errors import BackendUnavailableError

try:
    from dnncore.importers.onnx.importing import import_onnx
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] not in ("onnx", "google"):
        raise
    raise BackendUnavailableError(
        "the package onnx is not there; install it with `pip install dnncore[onnx]`"
    ) from error
from dnncore.importers.onnx.limits import Limits

__all__ = ["Limits", "import_onnx"]
