"""Families of torchvision and timm, exported to ONNX with random weights, imported, and compared with what PyTorch gave.

    python -m benchmarks.families export FOLDER [--jobs 8] [torchvision/resnet50 ...]
    python -m benchmarks.families compare FOLDER --out benchmarks/results [--device cuda:0]

`export` needs torchvision, timm and onnxscript; the two may run in different environments. It leaves for each net an ONNX file with
a symbolic batch, as `torch.onnx.export` writes it by default, and beside it an input of two images with PyTorch's output. Batch
normalisations get random statistics, and parameters that begin as zero random values, so that no branch is without effect.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import textwrap
from collections.abc import Iterator
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.document import Document
from benchmarks.vision import torchvision
from dnncore import Handle
from dnncore.errors import ModelImportError
from dnncore.importers.onnx import import_onnx
from dnncore.nn import Executor, Parameters
from dnncore.nn.passes import for_inference

FAMILIES = {
    "torchvision": (
        "alexnet", "vgg16", "vgg16_bn", "googlenet", "inception_v3", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
        "densenet121", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_v2_s",
        "squeezenet1_0", "squeezenet1_1", "shufflenet_v2_x1_0", "mnasnet1_0", "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny",
        "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",
    ),
    "timm": (
        "resnet26d", "resnetv2_50", "resnext26ts", "seresnet50", "ecaresnet26t", "resnest14d", "skresnet18", "res2net50_26w_4s",
        "gluon_resnet18_v1b", "dla34", "darknet53", "cspresnet50", "densenet121", "dpn68", "efficientnet_lite0",
        "mobilenetv3_large_100", "mobilenetv4_conv_small", "fbnetc_100", "mixnet_s", "ghostnet_100", "hardcorenas_a",
        "hrnet_w18_small", "regnety_002", "repvgg_a0", "vgg11_bn", "xception41", "nf_regnet_b0", "nfnet_l0", "convnextv2_atto",
        "fastvit_t8", "mixer_s32_224", "deit_tiny_patch16_224", "edgenext_xx_small", "efficientformer_l1",
    ),
}  # fmt: skip
"""A net of each family."""

_IMAGES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    exporting = commands.add_parser("export", help="write ONNX files; those that are there stay")
    exporting.set_defaults(run=_export_all)
    comparing = commands.add_parser("compare", help="import them and compare their outputs with PyTorch's")
    comparing.add_argument("--out", type=Path, required=True, help="folder of the JSON file")
    comparing.add_argument("--device", default="cpu")
    comparing.set_defaults(run=_compare_all)
    for command in (exporting, comparing):
        command.add_argument("folder", type=Path)
        command.add_argument("--jobs", type=int, default=1, help="nets at a time (default: %(default)s)")
    exporting.add_argument("nets", nargs="*", metavar="LIBRARY/NET", help="default: all")  # behind the folder
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        options.run(options, pool)


def _all() -> Iterator[str]:
    return (f"{library}/{net}" for library, nets in FAMILIES.items() for net in nets)


def _export_all(options: argparse.Namespace, pool: Pool) -> None:
    missing = [name for name in ("torchvision", "timm", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"to export, install {', '.join(missing)}: pip install {' '.join(missing)}")
    for line in pool.imap_unordered(partial(_export, options.folder), options.nets or list(_all())):
        print(line, flush=True)


def _export(folder: Path, net: str) -> str:
    """Write one, unless it is there; what there is to say of it."""
    import torch

    file = _file(folder, net)
    if file.with_suffix(".npz").exists():
        return f"{net} is there"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    try:
        model, size = _net(*net.split("/"))
        _leave_nothing_without_effect(model)
        x = torch.randn(_IMAGES, 3, size, size)
        with torch.no_grad():
            y = model(x)
        shapes = ({0: torch.export.Dim("batch", min=1, max=1024)},)
        torch.onnx.export(model, (x,), file, dynamo=True, dynamic_shapes=shapes, verbose=False)
    except Exception as error:  # noqa: BLE001 (whatever PyTorch raises where it cannot export a net)
        return f"{net}: {type(error).__name__}: {error}"
    np.savez(file.with_suffix(".npz"), x=x.numpy(), y=y.numpy())
    return net


def _net(library: str, name: str) -> tuple[Any, int]:
    """A net with random weights for inference, and the extent of the images that it is made for."""
    models = torchvision().models  # before timm, which imports it
    if library == "timm":
        import timm

        net = timm.create_model(name, pretrained=False).eval()
        return net, int(net.default_cfg["input_size"][-1])
    extra: dict[str, object] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if name == "googlenet":
        extra["aux_logits"] = False
    return getattr(models, name)(**extra).eval(), 299 if name == "inception_v3" else 224


def _leave_nothing_without_effect(net: Any) -> None:
    import torch

    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    for parameter in net.parameters():
        if parameter.ndim > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def _compare_all(options: argparse.Namespace, pool: Pool) -> None:
    document = Document(options.out / "families.json", ("net",), device=options.device)
    for row in pool.imap(partial(_row, options.folder, options.device), _all()):
        document.add([row])
        print(f"{row['net']}: {row['why'] or row['error']}", flush=True)


def _row(folder: Path, device: str, net: str) -> dict[str, object]:
    row: dict[str, object] = {"net": net, "error": None, "why": ""}
    try:
        with Handle(device) as handle:
            row["error"] = _error(_file(folder, net), handle)
    except FileNotFoundError as error:
        row["why"] = f"not exported: {error}"
    except ModelImportError as error:
        unnamed = (problem.partition("' ")[2] or problem for problem in error.problems)
        row["why"] = textwrap.shorten("; ".join(dict.fromkeys(unnamed)), 200)
    return row


def _error(file: Path, handle: Handle) -> float:
    """The largest difference from PyTorch's output, as a part of its largest element.

    Raises:
        ModelImportError: the net is refused.
        FileNotFoundError: it was not exported.
    """
    with np.load(file.with_suffix(".npz")) as stored:
        x, y = stored["x"], stored["y"]
    model = for_inference(import_onnx(file))
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, batch=_IMAGES) as executor,
    ):
        (found,) = executor.run({model.graph.inputs[0].name: x}).values()
    return float(np.abs(found - y).max() / np.abs(y).max())


def _file(folder: Path, net: str) -> Path:
    return folder / f"{net}.onnx"


if __name__ == "__main__":
    main()
