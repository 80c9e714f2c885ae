"""Preprocessing on the host and on a device: images a second, and what each kernel makes of the memory's rate.

The images are decoded already, smooth noise of the sizes that photographs have. The host does the steps of `Preprocessing` on one
thread, as a server's decoding threads do. The device's figures are those of `ImagePipeline.run`, which lays images out in
page-locked memory, copies them and runs two kernels. `_us` is a kernel's time on the device, by events, and `_tbps` the fewest
bytes that it must move (the source's pixels, and the results) over that; the ceiling is the memory rate of `DeviceFigures`.

    python -m benchmarks.images --out benchmarks/results
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.document import Document
from benchmarks.timing import milliseconds
from dnncore import DType, Handle, Tensor, TensorDescriptor, ops
from dnncore.image_pipeline import ImagePipeline
from dnncore.preprocessing import Preprocessing, from_timm, from_torchvision

SPECIFICATIONS = {
    "torchvision, bilinear": {"crop_size": 224, "resize_size": 256, "interpolation": "bilinear"},
    "timm, bicubic": {"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic"},
}
SIZES = {"500 x 375": (375, 500), "1920 x 1080": (1080, 1920)}
BATCHES = (1, 8, 32, 128)
_LAUNCHES = 20


class _Preset:
    """The attributes of torchvision's ImageClassification."""

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    antialias = True

    def __init__(self, crop_size: int, resize_size: int, interpolation: str) -> None:
        self.crop_size, self.resize_size, self.interpolation = [crop_size], [resize_size], interpolation


def specification(name: str) -> Preprocessing:
    settings: Any = SPECIFICATIONS[name]
    return from_timm(settings) if name.startswith("timm") else from_torchvision(_Preset(**settings))


def photograph(height: int, width: int, seed: int) -> np.ndarray:
    """uint8 [height, width, 3]."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return np.asarray(Image.fromarray(noise).resize((width, height)))


def on_the_host(preprocessing: Preprocessing, pixels: np.ndarray) -> np.ndarray:
    """What `Preprocessing.from_bytes` does once the file is decoded."""
    image = Image.fromarray(pixels)
    for step in preprocessing.geometry:
        image = step.apply(image)
    return preprocessing.normalize(np.asarray(image))


def kernel_ms(handle: Handle, launch: Callable[[], None]) -> float:
    """Of one launch, on the device; a captured program leaves the host out."""
    with handle.record() as program:
        for _ in range(_LAUNCHES):
            launch()
    with closing(program.capture()) as captured:
        captured.run()  # loads code
        start = handle.stream.record_event()
        captured.run()
        return handle.stream.record_event().elapsed_ms(start) / _LAUNCHES


def kernels(handle: Handle, preprocessing: Preprocessing, images: list[np.ndarray], dtype: DType) -> dict[str, float]:
    """Microseconds of the resize, and of the normalisation, of a batch."""
    shape = (len(images), *preprocessing.input_shape)
    with (
        ImagePipeline(preprocessing, handle) as pipeline,
        handle.tensor(shape, dtype) as y,
        handle.tensor(TensorDescriptor.packed(shape, DType.UINT8, "NHWC")) as resized,
        handle.upload(preprocessing.normalization.operands()[0]) as table,
    ):
        operands = pipeline.load(images)
        return {
            "resize_us": 1e3 * kernel_ms(handle, lambda: ops.image_resize(handle, 1.0, *operands, 0.0, resized)),
            "normalization_us": 1e3
            * kernel_ms(handle, lambda: ops.image_normalization(handle, 1.0, resized, table, 0.0, y)),
        }


def measure(handle: Handle, name: str, size: str, batch: int, dtype: DType) -> dict[str, Any]:
    preprocessing = specification(name)
    images = [photograph(*SIZES[size], seed) for seed in range(batch)]
    started = time.perf_counter()
    some = images[:8]
    for image in some:
        on_the_host(preprocessing, image)
    host_s = (time.perf_counter() - started) / len(some)
    y: Tensor
    with (
        ImagePipeline(preprocessing, handle) as pipeline,
        handle.tensor((batch, *preprocessing.input_shape), dtype) as y,
    ):
        ms = milliseconds(lambda: pipeline.run(images, y), handle.stream.synchronize)
    of_kernels = kernels(handle, preprocessing, images, dtype)
    pixels = y.size
    moved = {
        "resize": sum(image.nbytes for image in images) + pixels,
        "normalization": pixels * (1 + dtype.itemsize),
    }
    ceiling = handle.device.figures.bytes_per_second
    rates = {what: nbytes / of_kernels[f"{what}_us"] * 1e6 for what, nbytes in moved.items()}
    return {
        "specification": name,
        "size": size,
        "batch": batch,
        "dtype": dtype.value,
        "host_images_per_s": round(1 / host_s, 1),
        "images_per_s": round(batch / ms * 1e3, 1),
        "kernel_images_per_s": round(batch / sum(of_kernels.values()) * 1e6, 1),
        **{what: round(us, 2) for what, us in of_kernels.items()},
        **{f"{what}_tbps": round(rate / 1e12, 3) for what, rate in rates.items()},
        **{f"{what}_of_ceiling": round(rate / ceiling, 3) for what, rate in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--device", default="cuda:0", help='"cuda:N" or "cpu"')
    parser.add_argument("--batch", type=int, nargs="*", default=BATCHES, help="images at a time")
    parser.add_argument("--only", default="", help="only specifications whose name contains this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    document = Document(options.out / "images.json", ["specification", "size", "batch", "dtype"])
    with Handle(options.device) as handle:
        for name in SPECIFICATIONS:
            for size in SIZES:
                for batch in options.batch:
                    for dtype in (DType.FLOAT32, DType.FLOAT16):
                        if options.only in name:
                            found = measure(handle, name, size, batch, dtype)
                            document.add([found])
                            print(" ".join(f"{key} {value}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
