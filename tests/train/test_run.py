from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from dnncore.errors import CheckpointError, ConfigError, DivergedError, PreprocessingError
from dnncore.nn import Package
from dnncore.train.checkpoint import CheckpointStore
from dnncore.train.config import parse_config
from dnncore.train.run import Outcome, dry_run, evaluate_package, train
from dnncore.train.solver import Ending
from tests.train.fixtures import CLASSES, make_folder, small_config

ITERATIONS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "stripes")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("straight")
    outcome = train(small_config(run, data), io.StringIO())
    assert (outcome.ending, outcome.iteration) == (Ending.FINISHED, ITERATIONS)
    return run


class SignalAt(io.StringIO):
    """A stream in which the line of one iteration sets off a signal, so that it always comes at the same place."""

    def __init__(self, iteration: int, number: signal.Signals) -> None:
        super().__init__()
        self._text = f"iteration {iteration}/"
        self._number = number

    def write(self, text: str) -> int:
        if self._text in text:
            signal.raise_signal(self._number)
        return super().write(text)


def package_bytes(run: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in (run / "package").iterdir()}
    return files | {"evaluation.json": (run / "evaluation.json").read_bytes()}


def events(run: Path, *kinds: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] in kinds]


def figures(run: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Losses and evaluations by iteration, without what depends on the clock."""
    timed = ("time", "images_per_second", "data_wait", "eta_s")
    return {
        (str(event["event"]), int(str(event["iteration"]))): {k: v for k, v in event.items() if k not in timed}
        for event in events(run, "step", "epoch", "evaluation")
    }


def test_a_run_leaves_a_package_its_evaluation_its_configuration_and_a_journal(straight: Path, data: Path) -> None:
    package = Package.load(straight / "package")
    evaluation = json.loads((straight / "evaluation.json").read_text())
    assert package.labels == CLASSES
    assert package.provenance["metrics"] == {key: evaluation[key] for key in ("num_images", "top1", "top5", "loss")}
    assert package.provenance["iterations"] == ITERATIONS
    assert len(package.provenance["split"]["held_out"]) == evaluation["num_images"] == 6
    assert parse_config((straight / "config.toml").read_text()) == small_config(straight, data)
    assert [event["iteration"] for event in events(straight, "step")] == list(range(1, ITERATIONS + 1))
    assert [event["epoch"] for event in events(straight, "evaluation")] == [1, 2, 3]
    assert len(list((straight / "checkpoints").iterdir())) == 3  # the latest two and the best
    assert [event["event"] for event in events(straight, "start", "stop", "export")] == ["start", "stop", "export"]


def test_the_loss_of_an_epoch_is_the_mean_over_its_images(straight: Path) -> None:
    steps = events(straight, "step")[:4]
    mean = sum(float(str(step["loss"])) * images for step, images in zip(steps, (7, 7, 7, 3), strict=True)) / 24
    assert events(straight, "epoch")[0]["loss"] == pytest.approx(mean, rel=1e-12)


def test_a_run_repeats_to_the_last_bit(straight: Path, data: Path, tmp_path: Path) -> None:
    train(small_config(tmp_path, data), io.StringIO())
    assert package_bytes(tmp_path) == package_bytes(straight)


@pytest.mark.parametrize("stop", [1, 3, 4, 6, 11])
def test_a_stopped_and_resumed_run_ends_in_the_same_bits(straight: Path, data: Path, tmp_path: Path, stop: int) -> None:
    outcome = train(small_config(tmp_path, data, f"training.stop_after={stop}"), io.StringIO())
    assert (outcome.ending, outcome.iteration, outcome.package) == (Ending.STOPPED, stop, None)
    assert not (tmp_path / "package").exists()
    outcome = train(small_config(tmp_path, data), io.StringIO(), resume=True)
    assert outcome.ending is Ending.FINISHED
    assert package_bytes(tmp_path) == package_bytes(straight)
    assert figures(tmp_path) == figures(straight)
    for name in ("best.safetensors", f"iteration-{ITERATIONS:010}.safetensors"):
        assert (tmp_path / "checkpoints" / name).read_bytes() == (straight / "checkpoints" / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("iteration", [4, 5])
def test_an_interrupted_and_resumed_run_ends_in_the_same_bits(
    straight: Path, data: Path, tmp_path: Path, iteration: int, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    outcome = train(small_config(tmp_path, data), SignalAt(iteration, number))
    assert (outcome.ending, outcome.signal, outcome.iteration) == (Ending.INTERRUPTED, number, iteration)
    assert signal.getsignal(number) is before
    train(small_config(tmp_path, data), io.StringIO(), resume=True)
    assert package_bytes(tmp_path) == package_bytes(straight)
    assert figures(tmp_path) == figures(straight)


def test_a_run_killed_after_a_checkpoint_is_resumed_from_it(straight: Path, data: Path, tmp_path: Path) -> None:
    train(small_config(tmp_path, data), io.StringIO())
    store = CheckpointStore(tmp_path / "checkpoints", 2)
    store.paths()[-1].unlink()  # as if it had been killed before it could write its last one
    outcome = train(small_config(tmp_path, data), io.StringIO(), resume=True)
    assert outcome.ending is Ending.FINISHED
    assert package_bytes(tmp_path) == package_bytes(straight)


def test_a_finished_run_may_be_resumed_to_export_it_again(straight: Path, data: Path, tmp_path: Path) -> None:
    train(small_config(tmp_path, data), io.StringIO())
    outcome = train(small_config(tmp_path, data, f"output.package={tmp_path / 'again'}"), io.StringIO(), resume=True)
    assert outcome.package == tmp_path / "again"
    weights = (tmp_path / "again" / "weights.safetensors").read_bytes()
    assert weights == package_bytes(straight)["weights.safetensors"]


def test_the_best_weights_can_be_exported_instead_of_the_last(straight: Path, data: Path, tmp_path: Path) -> None:
    outcome = train(small_config(tmp_path, data, "output.weights=best"), io.StringIO())
    best = CheckpointStore(straight / "checkpoints", 2).load(straight / "checkpoints" / "best.safetensors")
    weights = Package.load(tmp_path / "package").weights
    assert {name: array.tobytes() for name, array in weights.items()} == {
        name: array.tobytes() for name, array in best.weights.items()
    }
    assert outcome.evaluation is not None
    assert outcome.evaluation.top1 == best.state.best_top1


def test_another_seed_gives_other_weights(straight: Path, data: Path, tmp_path: Path) -> None:
    train(small_config(tmp_path, data, "seed=1"), io.StringIO())
    assert package_bytes(tmp_path)["weights.safetensors"] != package_bytes(straight)["weights.safetensors"]


def start_and_stop(run: Path, data: Path) -> Outcome:
    return train(small_config(run, data, "training.stop_after=3"), io.StringIO())


def test_a_resumed_run_that_is_past_where_it_should_stop_stops_at_once(data: Path, tmp_path: Path) -> None:
    start_and_stop(tmp_path, data)
    outcome = train(small_config(tmp_path, data, "training.stop_after=2"), io.StringIO(), resume=True)
    assert (outcome.ending, outcome.iteration) == (Ending.STOPPED, 3)


def test_a_folder_that_holds_a_run_is_not_overwritten_by_accident(data: Path, tmp_path: Path) -> None:
    checkpoint = start_and_stop(tmp_path, data).checkpoint
    content = checkpoint.read_bytes()
    with pytest.raises(ConfigError, match=r"already holds a run .*--resume.*--fresh.*another output.run"):
        train(small_config(tmp_path, data), io.StringIO())
    assert checkpoint.read_bytes() == content
    assert train(small_config(tmp_path, data), io.StringIO(), fresh=True).ending is Ending.FINISHED


def test_there_must_be_something_to_resume(data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint to resume from"):
        train(small_config(tmp_path, data), io.StringIO(), resume=True)
    with pytest.raises(ConfigError, match="--resume and --fresh contradict"):
        train(small_config(tmp_path, data), io.StringIO(), resume=True, fresh=True)


def test_a_checkpoint_of_another_configuration_is_refused_with_the_differences(data: Path, tmp_path: Path) -> None:
    start_and_stop(tmp_path, data)
    with pytest.raises(CheckpointError, match=r"another run \(optimizer\.lr: 0\.02, now 0\.5\)"):
        train(small_config(tmp_path, data, "optimizer.lr=0.5"), io.StringIO(), resume=True)


def test_a_checkpoint_of_other_images_is_refused(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "stripes")
    start_and_stop(tmp_path / "run", data)
    (data / "vertical" / "00.png").unlink()
    with pytest.raises(CheckpointError, match="trained on other images"):
        train(small_config(tmp_path / "run", data), io.StringIO(), resume=True)


def test_a_damaged_checkpoint_is_refused(data: Path, tmp_path: Path) -> None:
    path = start_and_stop(tmp_path, data).checkpoint
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(
        CheckpointError, match=r"does not have the SHA-256.*remove it to resume from iteration-0000000002"
    ):
        train(small_config(tmp_path, data), io.StringIO(), resume=True)


def test_divergence_stops_the_run_and_names_the_iteration(data: Path, tmp_path: Path) -> None:
    with (
        np.errstate(all="ignore"),
        pytest.raises(DivergedError, match=r"iteration \d+ \(epoch 1\): .*lower optimizer.lr"),
    ):
        train(small_config(tmp_path, data, "optimizer.lr=1e30", "checkpoint.every=100"), io.StringIO())
    [event] = events(tmp_path, "diverged")
    assert 1 < int(str(event["iteration"])) <= 4


def test_a_damaged_image_stops_the_run_with_its_name(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "stripes")
    for path in (data / "vertical").iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(PreprocessingError, match=r"vertical/\d\d\.png"):
        train(small_config(tmp_path / "run", data), io.StringIO())


def test_a_net_that_does_not_fit_the_images_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"net.name lenet does not take .* = \[1, 2, 2\].*preprocessing.height"):
        train(small_config(tmp_path, data, "preprocessing.height=2", "preprocessing.width=2"), io.StringIO())


@pytest.mark.parametrize("device", ["cpu,cpu", "tpu", ""])
def test_a_device_that_cannot_be_used_is_refused(data: Path, tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        train(small_config(tmp_path, data, f"device={device}"), io.StringIO())


def test_a_dry_run_writes_nothing(data: Path, tmp_path: Path) -> None:
    stream = io.StringIO()
    dry_run(small_config(tmp_path / "run", data), stream)
    assert "loss" in stream.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_a_package_is_evaluated_on_the_images_that_were_held_out_from_it(straight: Path, data: Path) -> None:
    stream = io.StringIO()
    evaluation = evaluate_package(small_config(straight, data), straight / "package", stream)
    assert evaluation.to_dict() == json.loads((straight / "evaluation.json").read_text())
    assert stream.getvalue() == ""


def test_evaluating_on_another_split_says_so(straight: Path, data: Path) -> None:
    stream = io.StringIO()
    evaluate_package(small_config(straight, data, "seed=9"), straight / "package", stream)
    assert "may have been trained on some of these images" in stream.getvalue()
