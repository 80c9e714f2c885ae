from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dnncore.train.__main__ import main
from tests.train.fixtures import make_folder, small_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small_config(tmp_path / "run", make_folder(tmp_path / "stripes")).to_toml())
    return path


def test_training_and_evaluating_succeed_and_agree(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config)]) == 0
    printed = capsys.readouterr().out
    assert "lr = 0.02" in printed
    assert f"package: {config.parent / 'run' / 'package'}" in printed
    assert main([str(config), "--evaluate", str(config.parent / "run" / "package")]) == 0
    figures = capsys.readouterr().out.splitlines()[-1]
    assert figures.startswith("held out: 6 images  top-1 ")
    assert figures in printed


def test_a_dry_run_succeeds_and_leaves_no_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "--dry-run"]) == 0
    assert "nothing written" in capsys.readouterr().out
    assert not (config.parent / "run").exists()


def test_a_bad_configuration_exits_with_2_and_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "optimizer.rate=1"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("dnntrain: ")
    assert "unknown key optimizer.rate; legal in [optimizer]: lr" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "holds no checkpoint"),
        (["--evaluate", "nowhere"], "nowhere"),
        (["output.run=/proc/x"], "/proc/x"),
    ],
)
def test_what_fails_exits_with_1_and_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(config), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_that_a_stopped_run_prints_resumes_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "seed=3", "--fresh", "training.stop_after=5"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "stopped by training.stop_after after iteration 5" in line
    program, *arguments = shlex.split(line.partition("go on with: ")[2])
    assert program == "dnntrain"
    assert main(arguments) == 0
    assert "resumed after iteration 5" in capsys.readouterr().out


def run_until_a_step_and_send(number: signal.Signals, config: Path, *overrides: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a dnntrain of its own that gets a signal once it has learned from a batch."""
    command = [sys.executable, "-m", "dnncore.train", str(config), *overrides]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            journal = config.parent / "run" / "journal.jsonl"
            for _ in range(3000):
                if process.poll() is not None or (journal.exists() and '"step"' in journal.read_text()):
                    break
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_with_a_checkpoint_and_the_signals_status(
    config: Path, number: signal.Signals
) -> None:
    status, out, err = run_until_a_step_and_send(number, config, "training.epochs=1000000", "checkpoint.every=1000000")
    assert (status, err) == (128 + number, "")
    line = out.splitlines()[-1]
    assert f"stopped by {number.name} after iteration" in line
    assert line.endswith("--resume")
    assert len(list((config.parent / "run" / "checkpoints").glob("iteration-*"))) == 1


def test_a_process_ended_by_sigterm_and_resumed_leaves_the_bytes_of_one_that_ran_through(config: Path) -> None:
    # Evaluations and checkpoints make the run last seconds; the signal comes within a fraction of one.
    overrides = ["training.epochs=100", "checkpoint.every=1"]
    status, out, err = run_until_a_step_and_send(signal.SIGTERM, config, *overrides)
    assert (status, err) == (128 + signal.SIGTERM, "")
    assert not (config.parent / "run" / "package").exists()
    assert main(shlex.split(out.splitlines()[-1].partition("go on with: dnntrain ")[2])) == 0
    assert main([str(config), *overrides, f"output.run={config.parent / 'straight'}"]) == 0
    resumed, straight = (
        {path.name: path.read_bytes() for path in (run / "package").iterdir()}
        | {"evaluation.json": (run / "evaluation.json").read_bytes()}
        for run in (config.parent / "run", config.parent / "straight")
    )
    assert resumed == straight
