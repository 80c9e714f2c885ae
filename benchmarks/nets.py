"""Nets of the zoo as they are served, beside torchvision's in PyTorch on the same GPU: images a second, and memory.

    python -m benchmarks.nets --out benchmarks/results [--nets resnet50 ...] [--batches 1 32 256] [--precisions float16 int8]
        [--compiled reduce-overhead max-autotune] [--slice 8 16] [--without fuse_inverted_residuals ...]

Both have the same weights, their outputs are compared first, and they run in turn on inputs that are on the device. PyTorch runs
eagerly and as a CUDA graph, in fp16 channels-last, with cuDNN's own search for the fastest algorithm; `--compiled` adds
`torch.compile` in these modes, frozen, so that batch norm is folded: half a minute a row, and minutes by max-autotune. The best of
them counts. Ours in int8 is calibrated on a few of the images and runs beside PyTorch in fp16; `agreement` is how many of the
images it gives the class to that PyTorch gives them in fp32, and `classes` how many classes those are: with random weights and
noise for images they may be few. `--slice` also computes batches a few images at a time, so that what lies between two layers may
stay in the second-level cache, beside the whole batch, and writes slices.json in place of nets.json.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison import DEFAULT_STREAM, release
from benchmarks.document import Document
from benchmarks.twins import twin
from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.nn import Executor, Parameters
from dnncore.nn.calibration import calibrate
from dnncore.nn.model import Model
from dnncore.nn.passes import CHOICES, for_inference
from dnncore.nn.zoo import ZOO

NETS = ("resnet50", "vgg16", "alexnet", "googlenet", "mobilenet_v2")
_MODES = ("reduce-overhead", "max-autotune")
_CALIBRATION_IMAGES = 8
_ROUNDS = 7
_ROUND_SECONDS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON file")
    parser.add_argument("--nets", nargs="+", default=NETS, choices=NETS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 256])
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=["float32", "float16", "int8"],
        choices=["float32", "float16", "bfloat16", "int8"],
    )
    parser.add_argument("--autotune", action="store_true", help="choose algorithms by timing them")
    parser.add_argument("--compiled", nargs="+", default=[], choices=_MODES, help="beside torch.compile too")
    parser.add_argument("--slice", nargs="+", type=int, default=[], metavar="IMAGES", help="and of batches in slices")
    parser.add_argument("--without", nargs="+", default=[], choices=CHOICES, help="passes of ours to leave out")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = "slices.json" if arguments.slice else "nets.json"
    document = Document(arguments.out / file, ("net", "precision", "batch", "autotuned"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for name in arguments.nets:
        model = _model(name)
        for precision in arguments.precisions:
            for row in _measure(name, model, DType.of(precision), arguments):
                document.add([row])
                print(_line(row), flush=True)


def _line(row: Mapping[str, Any]) -> str:
    theirs = ", ".join(f"{how} {ms:.3f}" for how, ms in row["torch_ms"].items())
    ours, memory = (
        f"{row['ours_ms']:8.3f} ms = {row['ours_images_per_s']:8.0f} images/s",
        f"{row['ours_bytes'] / 1e6:.0f} MB",
    )
    agreement = f"  agreement {row['agreement']:.3f} of {row['classes']} classes" if "agreement" in row else ""
    sliced = "".join(f"  by {images} {ms:.3f} ms" for images, ms in row["sliced_ms"].items())
    return (
        f"{row['net']:13s} {row['precision']:8s} {row['batch']:4d}  {ours}  {row['ratio']:.2f} times PyTorch ({theirs} ms)  "
        f"{memory}, PyTorch {row['torch_bytes'] / 1e6:.0f} MB  error {row['error']:.1e}{agreement}{sliced}"
    )


def _model(name: str) -> Model:
    """A net of the zoo whose activations stay within the range of 16 bits: variances are what random weights make them."""
    graph = ZOO[name](1000, (3, 224, 224))
    return Model(graph, graph.initialize(0))


def _measure(name: str, model: Model, precision: DType, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    dtype = torch.float16 if precision is DType.INT8 else getattr(torch, precision.value)
    narrow = precision is not DType.FLOAT32
    exact = twin(name, model.weights, **({"aux_logits": False} if name == "googlenet" else {})).eval().cuda()
    net = copy.deepcopy(exact).to(dtype, memory_format=torch.channels_last if narrow else torch.preserve_format)
    with torch.inference_mode(), Handle("cuda:0", stream=DEFAULT_STREAM, autotune=arguments.autotune) as handle:
        faster = _faster(model, precision, handle, arguments.without)
        with Parameters.upload(handle, faster.graph, faster.weights) as parameters:
            for batch in arguments.batches:
                x = _images(batch)
                theirs_x = x.to(dtype, memory_format=torch.channels_last if narrow else torch.contiguous_format)
                slices = [images for images in arguments.slice if images < batch and batch % images == 0]
                with ExitStack() as stack:
                    executor, *sliced = (
                        stack.enter_context(Executor(faster.graph, handle, parameters, batch, slice_images=images))
                        for images in (None, *slices)
                    )
                    contestants, torch_bytes, expected = _contestants(net, theirs_x, arguments.compiled)
                    for one in (executor, *sliced):
                        one.tensor("data").assign(x.cpu().numpy())
                    executor.enqueue()
                    found = torch.from_numpy(executor.tensor(faster.graph.outputs[0]).numpy())
                    error = float((found - expected).norm() / expected.norm())
                    calls = [one.enqueue for one in (executor, *sliced)]
                    ours, *others = _milliseconds([*calls, *contestants.values()])
                    in_slices, theirs = others[: len(sliced)], others[len(sliced) :]
                    best = min(theirs)
                    yield {
                        "net": name,
                        "precision": precision.value,
                        "batch": batch,
                        "autotuned": arguments.autotune,
                        "ours_ms": ours,
                        "ours_images_per_s": batch / ours * 1e3,
                        "sliced_ms": dict(zip(map(str, slices), in_slices, strict=True)),
                        "torch_ms": dict(zip(contestants, theirs, strict=True)),
                        "torch_images_per_s": batch / best * 1e3,
                        "ratio": best / ours,
                        "ours_bytes": executor.arena_bytes,
                        "torch_bytes": torch_bytes,
                        "error": error,
                    } | (_agreement(found, exact(x).cpu()) if precision is DType.INT8 else {})
                del contestants
                release()


def _images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 224, 224, device="cuda", generator=torch.Generator("cuda").manual_seed(batch))


def _faster(model: Model, precision: DType, handle: Handle, without: Sequence[str]) -> Model:
    """What is run in place of a net; for int8, as images of the same kind show it to be."""
    if precision is not DType.INT8:
        return for_inference(model, precision, without)
    images = {"data": _images(_CALIBRATION_IMAGES).cpu().numpy()}
    calibration = calibrate(for_inference(model, without=without), [images], handle)
    return for_inference(model, precision, without, calibration)


def _agreement(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """How many images get the class that they should, of how many classes."""
    classes = expected.argmax(1)
    return {"agreement": float((found.argmax(1) == classes).float().mean()), "classes": len(classes.unique())}


def _contestants(
    net: torch.nn.Module, x: torch.Tensor, modes: Sequence[str]
) -> tuple[dict[str, Callable[[], object]], int, torch.Tensor]:
    """What PyTorch has, the bytes that an eager pass takes beside weights, and what it gives."""
    for _ in range(3):
        y = net(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    net(x)
    nbytes = torch.cuda.max_memory_allocated() - before + x.nbytes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)
    found: dict[str, Callable[[], object]] = {"eager": lambda: net(x), "graph": graph.replay}
    torch._inductor.config.freezing = True
    for mode in modes:
        torch._dynamo.reset()  # else a net that is compiled in one mode stays so in the next
        compiled = torch.compile(net, mode=mode, fullgraph=True, dynamic=False)
        for _ in range(3):
            compiled(x)
        found[mode] = partial(compiled, x)
    return found, nbytes, y.float().cpu()


def _milliseconds(contestants: list[Callable[[], object]]) -> list[float]:
    """Median of the wall for one call, of several in turn."""

    def sample(call: Callable[[], object], calls: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls * 1e3

    counts = []
    for call in contestants:
        sample(call, 3)
        counts.append(max(3, min(200, int(_ROUND_SECONDS * 1e3 / sample(call, 3)))))
    rounds = [[sample(*one) for one in zip(contestants, counts, strict=True)] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


if __name__ == "__main__":
    main()
