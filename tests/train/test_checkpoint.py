from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from dnncore.errors import CheckpointError, DivergedError
from dnncore.train.checkpoint import Checkpoint, CheckpointStore, TrainingState, replace_file


def make(iteration: int = 7, value: float = 1.5) -> Checkpoint:
    arrays = {"ip.weight": np.full((2, 3), value, np.float32), "ip.bias": np.arange(2, dtype=np.float32)}
    state = TrainingState(iteration, 2, 1, 0.1 + 0.2, 14, 2, 1 / 3)
    return Checkpoint(
        state, {"seed": 0, "optimizer.lr": 0.1}, "abc", arrays, {"ip.weight": np.eye(2, 3, dtype=np.float32)}
    )


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return (
        (a.state, a.identity, a.fingerprint) == (b.state, b.identity, b.fingerprint)
        and [(name, array.tobytes(), array.shape) for name, array in sorted(a.weights.items())]
        == [(name, array.tobytes(), array.shape) for name, array in sorted(b.weights.items())]
        and {name: array.tobytes() for name, array in a.momenta.items()}
        == {name: array.tobytes() for name, array in b.momenta.items()}
    )


def test_a_checkpoint_reads_back_equal_to_the_last_bit() -> None:
    assert same(Checkpoint.decode(make().encode(), "x"), make())


def test_the_same_checkpoint_always_gives_the_same_bytes() -> None:
    assert len({make().encode() for _ in range(20)}) == 1


def test_a_checkpoint_without_momentum_reads_back() -> None:
    checkpoint = Checkpoint(TrainingState(), {}, "", {"w": np.ones(1, np.float32)}, {})
    assert Checkpoint.decode(checkpoint.encode(), "x").momenta == {}


def test_every_truncation_is_refused() -> None:
    data = make().encode()
    for length in range(len(data)):
        with pytest.raises(CheckpointError, match=r"x\.safetensors"):
            Checkpoint.decode(data[:length], "x.safetensors")


def test_every_flipped_bit_is_refused_unless_it_changes_nothing() -> None:
    data = make().encode()
    refused = 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                assert same(Checkpoint.decode(bytes(damaged), "x"), make()), (position, bit)
            except CheckpointError:
                refused += 1
    assert refused > 0.98 * 8 * len(data)  # what is left is white space of the header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or damaged"),
        (b"PK\x03\x04 a zip file that torch.save might have written", "truncated or damaged"),
        (safetensors.numpy.save({"w": np.ones(3, np.float32)}), "not a checkpoint of dnntrain"),
        (safetensors.torch.save({"w": torch.ones(3, dtype=torch.bfloat16)}), "foreign"),
        (safetensors.numpy.save({"w": np.ones(3)}, {"dnntrain": "{}"}), "damaged"),
        (safetensors.numpy.save({"w": np.ones(3)}, {"dnntrain": "[1]"}), "damaged"),
        (safetensors.numpy.save({"w": np.ones(3)}, {"dnntrain": "nonsense"}), "damaged"),
        (
            safetensors.numpy.save({"w": np.ones(3)}, {"dnntrain": '{"version": 99, "sha256": "", "run": ""}'}),
            "has format version 99; this dnntrain reads 2",
        ),
    ],
    ids=["empty", "zip", "safetensors", "bfloat16", "no fields", "list", "no JSON", "version"],
)
def test_foreign_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"foreign.*{message}|{message}") as error:
        Checkpoint.decode(content, "foreign.safetensors")
    assert "foreign.safetensors" in str(error.value)


@pytest.mark.parametrize("part", ["weights", "momenta"])
def test_what_is_not_finite_is_never_written(tmp_path: Path, part: str) -> None:
    checkpoint = make()
    getattr(checkpoint, part)["ip.weight"][0, 1] = np.inf
    with pytest.raises(DivergedError, match=rf"{part}/ip\.weight is not finite after iteration 7"):
        CheckpointStore(tmp_path, 3).save(checkpoint)
    assert list(tmp_path.iterdir()) == []


def test_the_store_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    store.save_best(make(1))
    for iteration in (1, 2, 10, 9):
        store.save(make(iteration))
    assert [path.name for path in store.paths()] == [
        "iteration-0000000009.safetensors",
        "iteration-0000000010.safetensors",
    ]
    assert store.load(store.best_path).state.iteration == 1
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    store.clear()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_damaged_checkpoint_is_refused_with_the_one_to_go_on_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    store.save(make(5))
    path = store.save(make(9))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"0009\.safetensors .*remove it to resume from iteration-0000000005"):
        store.load(path)
    path.unlink()
    path = store.paths()[-1]
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"0005\.safetensors .*start again with --fresh"):
        store.load(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new, and longer")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
