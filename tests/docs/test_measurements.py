"""The measured tables are what the benchmarks wrote, and every place for one on the page has its file."""

from __future__ import annotations

import json

from measurements import (
    RESULTS,
    age,
    convolution,
    cpu,
    families,
    front,
    host,
    insert,
    memory_bound,
    nets,
    slices,
    steps,
    training,
)

from benchmarks.training import NETS, largest_difference


def test_of_several_algorithms_the_first_is_the_one_that_would_be_chosen() -> None:
    def row(direction: str, algorithm: str, tflops: float, of_cudnn: float) -> dict[str, object]:
        return {
            "layer": "conv1", "direction": direction, "algorithm": algorithm, "tflops": tflops, "of_cudnn": of_cudnn,
        }  # fmt: skip

    table = convolution(
        [
            row("forward", "fft_tiling", 123.4, 1.5),
            row("forward", "direct", 0.1, 0.01),
            row("backward_data", "gemm", 2.0, 0.5),
        ]
    )
    assert table.splitlines() == [
        "| layer | forward | backward-data |",
        "| --- | --- | --- |",
        "| conv1 | 123 `fft_tiling` (**1.50**) | 2 `gemm` (0.50) |",
        "",
        "Faster than cuDNN: 1 of 2. Geometric means: forward 1.50, backward-data 0.50.",
    ]


def test_what_had_nothing_beside_it_has_no_ratio() -> None:
    row = {"layer": "conv1", "direction": "forward", "algorithm": "gemm", "tflops": 2.0, "of_cudnn": None}
    assert convolution([row, {**row, "layer": "conv2", "of_cudnn": 2.0}]).splitlines()[2:] == [
        "| conv1 | 2 `gemm` |",
        "| conv2 | 2 `gemm` (**2.00**) |",
        "",
        "Faster than cuDNN: 1 of 1. Geometric means: forward 2.00.",
    ]
    relu = {"dtype": "float32", "results": [{"name": "relu", "of_copy": 0.5, "of_torch": None, "ms": 1.0}]}
    assert memory_bound([relu]).splitlines()[2] == "| relu | 0.50 |"


def test_operations_are_counted_that_reach_what_is_wanted_of_memory_and_of_launches() -> None:
    rows = [
        {"name": name, "of_copy": of_copy, "of_torch": 1.0, "ms": us / 1e3}
        for name, of_copy, us in (
            ("relu", 0.85, 99.0),
            ("lrn NCHW 112", 0.2, 9.0),
            ("lrn NCHW 14", 0.1, 5.0),
            ("norm 14", 0.9, 5.1),
        )
    ]
    assert memory_bound([{"dtype": "float16", "results": rows}]).splitlines()[-1] == (
        "Rows that reach 0.85 of the copy rate, and those of 14 x 14 that take at most 5.0 us: float16 1 of 2, and 1 of 2."
    )


def test_a_table_says_how_old_it_is_and_how_kernels_were_timed() -> None:
    environment = {"gpus": ["NVIDIA H200, 580.159, 143771 MiB"]}
    rows = [{"commit": "a" * 40}, {"commit": "b" * 40}, {"commit": "b" * 40}]
    before, now = ({"environment": environment, "results": rows, **method} for method in ({}, {"method": "graphs"}))
    assert age([before]) == "*Measured at commit `bbbbbbb` (2), `aaaaaaa` (1); NVIDIA H200.*"
    assert age([now], of_kernels=True).endswith("; NVIDIA H200; graphs.*")
    assert age([before], of_kernels=True).endswith("; NVIDIA H200; eager calls in a loop, on one set of buffers.*")


def test_steps_are_beside_those_in_pytorch() -> None:
    def row(how: str, rate: float, ratio: float, kernels: float) -> dict[str, object]:
        return {"net": "net", "how": how, "images_per_s": rate, "ratio": ratio, "kernels_ms": kernels}

    assert steps([row("PyTorch", 100.2, 1.0, 8.0), row("converted", 120.24, 1.2, 6.66)]).splitlines()[-2:] == [
        "| --- | --- | --- |",
        "| net | 100 (1.00), 8.0 ms | 120 (**1.20**), 6.7 ms |",
    ]


def test_a_figure_of_the_hosts_has_its_unit_and_its_goal() -> None:
    rows = [
        {"name": "replay", "ours": 8.731, "unit": "us", "torch": None, "most": 12},
        {"name": "net", "ours": 51.564, "unit": "ms", "torch": 68.092, "most": None},
        {"name": "layer", "ours": 9.1, "unit": "us", "torch": 9.2, "most": 15, "below_torch": True},
        {"name": "slow layer", "ours": 9.2, "unit": "us", "torch": 9.2, "most": 15, "below_torch": True},
        {"name": "slow replay", "ours": 12.1, "unit": "us", "torch": None, "most": 12, "below_torch": False},
    ]
    assert host(rows).splitlines()[4:] == [
        "| replay | 8.73 us |  | 12 us |",
        "| net | 51.6 ms | 68.1 ms |  |",
        "| layer | 9.1 us | 9.2 us | 15 us, PyTorch's |",
        "| slow layer | 9.2 us | 9.2 us | 15 us, PyTorch's (missed) |",
        "| slow replay | 12.1 us |  | 12 us (missed) |",
    ]


def test_figures_of_the_host_have_a_table_for_each_kind() -> None:
    names = {
        "Calls and replays": ["functional.conv2d", "replay of 10 launches"],
        "Converted layers": ["converted ReLU, with gradient"],
        "Nets and training steps": ["ResNet-50, batch 1, float16", "AlexNet training step, batch 64, fp32: host"],
        "First plans": ["first plan of a convolution, forward 1x1, 7 x 7", "interpreter, at first plans"],
        "Where the time of a call goes": ["part: launches", "between the parts", "interpreter, at calls"],
    }
    rows = [
        {"name": name, "ours": 1.0, "torch": None, "unit": "us", "most": None}
        for part in reversed(names.values())
        for name in part
    ]
    _, *blocks = host(rows).split("**")
    found = {
        title: [line.split(" | ")[0].lstrip("| ") for line in table.strip().splitlines()[2:]]
        for title, table in zip(blocks[::2], blocks[1::2], strict=True)
    }
    assert found == names
    assert list(found) == list(names)


def test_element_types_stand_side_by_side() -> None:
    def document(dtype: str, *names: str) -> dict[str, object]:
        return {
            "dtype": dtype,
            "results": [{"name": name, "of_copy": 0.756, "of_torch": 1.234, "ms": 1.0} for name in names],
        }

    table = memory_bound([document("float32", "relu", "lrn"), document("float16", "relu")])
    assert table.splitlines()[2:4] == [
        "| relu | 0.76 (**1.23**) | 0.76 (**1.23**) |",
        "| lrn | 0.76 (**1.23**) |  |",
    ]


def test_processor_time_is_that_of_one_image() -> None:
    row = {
        "name": "net", "batch": 8, "threads": 2, "images_per_s": 4.04, "torch_images_per_s": 5.05, "of_torch": 0.8,
        "cpu_s": 1.6, "torch_cpu_s": 1.76, "cpu_of_torch": 1.1, "scratch_mb": 9.1,
    }  # fmt: skip
    assert cpu([row]).splitlines()[2:] == ["| net | 8 | 2 | 4.04 | 5.05 (0.80) | 200 ms | 220 ms (**1.10**) | 9 MB |"]


def test_a_net_has_a_column_for_each_batch() -> None:
    def row(batch: int, *, autotuned: bool = False) -> dict[str, object]:
        figures = {"ours_images_per_s": 1234.5 * batch, "ratio": 1.25, "autotuned": autotuned}
        figures |= {"ours_bytes": batch * 1_100_000, "torch_bytes": batch * 2_000_000}
        return {"net": "alexnet", "precision": "float16", "batch": batch, **figures}

    assert nets([row(1), row(32), row(1, autotuned=True)]).splitlines() == [
        "|  |  | batch 1 | batch 32 | MB at batch 32 |",
        "| --- | --- | --- | --- | --- |",
        "| alexnet | float16 | 1234 (**1.25**) | 39504 (**1.25**) | 35 (64) |",
    ]


def test_what_was_computed_in_slices_has_a_line_and_nothing_else() -> None:
    row = {"net": "alexnet", "precision": "float16", "batch": 16, "ours_ms": 1.25}
    rows: list[dict[str, object]] = [{**row, "sliced_ms": {"8": 2.5}}, {**row, "sliced_ms": {"8": 1.5, "16": 3.0}}, row]
    assert slices(rows).splitlines() == [
        "|  |  | batch | at once, ms | by 8 | by 16 |",
        "| --- | --- | --- | --- | --- | --- |",
        "| alexnet | float16 | 16 | 1.25 | 2.50 |  |",
        "| alexnet | float16 | 16 | 1.25 | 1.50 | 3.00 |",
    ]


def test_a_library_has_a_line_and_a_net_that_is_refused_another() -> None:
    rows: list[dict[str, object]] = [
        {"net": "timm/dla34", "error": 3.21e-7, "why": ""},
        {"net": "timm/dpn68", "error": 1e-7, "why": ""},
        {"net": "timm/swin", "error": None, "why": "Roll is\nnot there"},
    ]
    assert families(rows).splitlines()[2:] == [
        "| timm | 2 of 3 | 3.2e-07 | dla34, dpn68 |",
        "",
        "- timm/swin is refused: Roll is not there",
    ]


def test_the_first_page_shows_ours_beside_the_faster_of_pytorchs() -> None:
    def row(precision: str, batch: int, *, autotuned: bool = False, net: str = "resnet50") -> dict[str, object]:
        figures = {"ours_ms": 1.23456 * batch, "torch_ms": {"eager": 5.0 * batch, "graph": 2.5678 * batch}}
        return {"net": net, "precision": precision, "batch": batch, "autotuned": autotuned, **figures}

    nets = [row("float32", 1, autotuned=True), row("float32", 1), row("float16", 256), row("float32", 1, net="alexnet")]
    names = [
        f"ResNet-50 training step, batch 64, fp32{more}"
        for more in ("", ": host", ", layer by layer", ", layer by layer: host")
    ]
    host = [{"name": name, "ours": 10.04 + number, "torch": 20.06 + number} for number, name in enumerate(names)]
    assert [line.split(" | ")[1:] for line in front(nets, host).splitlines()[2:]] == [
        ["1.23 ms", "2.57 ms |"],
        ["316 ms", "657 ms |"],
        ["10.0 ms", "20.1 ms |"],
        ["12.0 ms", "22.1 ms |"],
    ]


def test_the_first_page_has_its_table() -> None:
    text = insert((RESULTS.parents[1] / "docs" / "index.md").read_text())
    assert "<!--" not in text
    assert "| ResNet-50, one image, captured as one launch |" in text


def test_losses_are_a_line_a_net_and_figures_of_each_rate() -> None:
    figures = {"difference": 1.23e-7, "from_float64": 2e-7, "torch_from_float64": 3e-7, "both_in_float64": 4e-16}
    rows = [{"net": net, "lr": lr, **figures} for net in ("alexnet", "resnet50") for lr in (1e-6, 1e-4)]
    del rows[3]["both_in_float64"]
    *_, alexnet, resnet = training(rows).splitlines()
    assert alexnet == "| alexnet | 1.2e-07 | 2.0e-07 | 3.0e-07 | 4.0e-16 | 1.2e-07 | 2.0e-07 | 3.0e-07 | 4.0e-16 |"
    assert resnet.endswith("| 3.0e-07 |  |")


def test_the_page_of_training_has_its_table() -> None:
    text = insert((RESULTS.parents[1] / "docs" / "training.md").read_text())
    assert text.count("| googlenet | ") == 2, "of a GPU, and of a CPU"
    assert "<!--" not in text


def test_losses_on_a_gpu_and_on_a_cpu_are_files_of_their_own() -> None:
    for name, device in (("training", "cuda:0"), ("training-cpu", "cpu")):
        rows = json.loads((RESULTS / f"{name}.json").read_text())["results"]
        assert {row["net"] for row in rows} == set(NETS)
        for row in rows:
            assert row["device"] == device
            assert len(row["ours"]) == len(row["torch"]) == row["steps"] == 20
            assert row["difference"] == largest_difference(row["ours"], row["torch"])


def test_the_page_has_tables_and_no_places_left() -> None:
    text = insert((RESULTS.parents[1] / "docs" / "performance.md").read_text())
    places = (RESULTS.parents[1] / "docs" / "performance.md").read_text().count("<!--")
    assert text.count("*Measured at commit `") == places > 8
    assert "<!--" not in text
    assert "| r50-3x3-64 |" in text
    assert "| relu-forward |" in text
    assert "| ResNet-50 | 1 |" in text
