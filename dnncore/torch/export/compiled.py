"""PyTorch models that run as one launch: executors of our nets with PyTorch's tensors at both ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError
from dnncore.handle import Handle
from dnncore.nn.executor import Executor
from dnncore.nn.graph import BATCH
from dnncore.nn.parameters import Parameters
from dnncore.nn.passes import for_inference
from dnncore.torch.dtypes import TORCH_DTYPES
from dnncore.torch.export.model import Imported, import_model
from dnncore.torch.export.program import as_inputs
from dnncore.torch.graph_breaks import breaks_graph

__all__ = ["CompiledModel", "compile_model"]

_MOST_EXECUTORS = 8
"""That are kept, each with activations of its own: one for each number of images that was seen last."""


class _Bound(NamedTuple):
    """An executor, and its inputs and outputs as PyTorch sees them. Immutable."""

    executor: Executor
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class CompiledModel:
    """A model to call with PyTorch's tensors. Owned by one thread; checked. Made by `dnncore.torch.compile`.

    A call copies its tensors on the device, enqueues one launch on PyTorch's current stream, and returns before that has run. The
    first call with a number of images chooses algorithms and captures the launch; as many as eight such are kept.

    Args:
        imported: The model.
        device: Where.
        precision: Of what lies between inputs and outputs.
        max_batch: Images that are computed at a time; None for as many as a call brings.

    Attributes:
        graph: The net that runs, after all passes.
    """

    def __init__(self, imported: Imported, device: torch.device, precision: DType, max_batch: int | None) -> None:
        if max_batch is not None and max_batch < 1:
            raise BadParamError(f"max_batch {max_batch} must be 1 or more")
        model = for_inference(imported.model, precision)
        self.graph = model.graph
        self._max_batch = max_batch
        if max_batch is not None:
            for name in self.graph.outputs:
                value = self.graph.values[name]
                if not str(value.shape[:1]).count(BATCH):
                    raise BadParamError(f"output {value} cannot be put together of parts: do not give max_batch")
        self._assemble = imported.assemble
        self._device = device
        self._stream = _current_stream(device)
        self._executors: OrderedDict[int, _Bound] = OrderedDict()
        self._handle: Handle | None = Handle(str(device), stream=self._stream)
        try:
            self._parameters = Parameters.upload(self._handle, self.graph, model.weights)
        except BaseException:
            self._handle.close()
            raise

    @breaks_graph
    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Compute what the model would have returned: a tensor, a tuple, a dictionary, ... No gradients.

        Args:
            inputs: On the device of the example, with its dtypes and shapes, but for the number of images. Any strides.

        Raises:
            BadParamError: there are more or fewer, or one is on another device or of another dtype or shape.
            ClosedError: this model was closed.
            OwnerError: another thread compiled it.
        """
        handle = self._open()
        batch = self._check(inputs)
        if (stream := _current_stream(self._device)) != self._stream:
            handle.set_stream(stream)  # which waits, on the device, for what is under way on the other
            self._stream = stream
        step = batch if self._max_batch is None else self._max_batch
        with torch.no_grad():
            parts = [self._run([x[i : i + step] for x in inputs]) for i in range(0, batch, step)]
            outputs = parts[0] if len(parts) == 1 else [torch.cat(each) for each in zip(*parts, strict=True)]
        return self._assemble(outputs)

    def _run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        bound = self._bound(len(inputs[0]))
        for place, x in zip(bound.inputs, inputs, strict=True):
            place.copy_(x)
        bound.executor.enqueue()
        return [place.clone() for place in bound.outputs]

    def _bound(self, batch: int) -> _Bound:
        """The executor for so many images, which is the last that will be given up."""
        found = self._executors.get(batch)
        if found is None:
            while len(self._executors) >= _MOST_EXECUTORS:
                self._executors.popitem(last=False)[1].executor.close()
            found = self._executors[batch] = self._bind(batch)
        self._executors.move_to_end(batch)
        return found

    def _bind(self, batch: int) -> _Bound:
        executor = Executor(self.graph, self._open(), self._parameters, batch)
        shapes = self.graph.specs(batch)
        inputs, outputs = (
            tuple(torch.from_dlpack(executor.tensor(name)).view(shapes[name].shape) for name in names)
            for names in ([value.name for value in self.graph.inputs], self.graph.outputs)
        )
        return _Bound(executor, inputs, outputs)

    def _check(self, inputs: Sequence[torch.Tensor]) -> int:
        """The number of images."""
        wanted = self.graph.inputs
        if len(inputs) != len(wanted):
            raise BadParamError(f"the model takes {len(wanted)} tensors, {len(inputs)} are given")
        batches = set()
        for value, x in zip(wanted, inputs, strict=True):
            if x.device != self._device or x.dtype is not TORCH_DTYPES[value.dtype] or x.shape[1:] != value.shape[1:]:
                raise BadParamError(
                    f"{value.name} is {x.dtype}{list(x.shape)} on {x.device}; the model was compiled for "
                    f"{TORCH_DTYPES[value.dtype]}[{', '.join(map(str, value.shape))}] on {self._device}"
                )
            batches.add(len(x))
        if len(batches) != 1 or 0 in batches:
            raise BadParamError(f"the tensors have {sorted(batches)} images; one number for all is needed, 1 or more")
        return batches.pop()

    def _open(self) -> Handle:
        if self._handle is None:
            raise ClosedError(f"the compiled model {self.graph.name!r} was closed")
        self._handle.check_owner()
        return self._handle

    def close(self) -> None:
        """Give executors and weights back; a second call does nothing."""
        if self._handle is None:
            return
        handle = self._open()
        while self._executors:
            self._executors.popitem()[1].executor.close()
        self._parameters.close()
        self._handle = None
        handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _current_stream(device: torch.device) -> int | None:
    """The CUstream of PyTorch's current stream; None on the CPU."""
    return None if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def compile_model(
    model: torch.nn.Module,
    example: torch.Tensor | Sequence[torch.Tensor],
    *,
    precision: DType | str = DType.FLOAT32,
    max_batch: int | None = None,
) -> CompiledModel:
    """Make one launch of a model in evaluation mode, on the device of an example.

    Batch normalisations are folded and convolutions fused with what follows them, so results differ from PyTorch's in the last
    bits. Weights and buffers are read now: what is done to the model later changes nothing.

    Args:
        model: In float32, with a batch as the first dimension of everything that it is called with.
        example: What it is called with, on the CPU or a CUDA device; several tensors as a tuple. Only dtypes and shapes count, and
            the number of images does not.
        precision: "float32", "float16" or "bfloat16", of what lies between inputs and outputs; these stay float32.
        max_batch: Images that are computed at a time, which bounds the memory; larger calls are computed in parts.

    Raises:
        ModelImportError: the model cannot be exported, or some of its operators are not supported: all of them are listed.
        BadParamError: a device that is neither the CPU nor CUDA.
    """
    inputs = as_inputs(example)
    device = inputs[0].device
    if device.type not in ("cpu", "cuda"):
        raise BadParamError(f"the example is on {device}; move it, and the model, to the CPU or to a CUDA device")
    return CompiledModel(import_model(model, inputs), device, DType.of(precision), max_batch)
