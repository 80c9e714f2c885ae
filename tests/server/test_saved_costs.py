"""What batches took, from one start of a server to the next."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from dnnclient import Client
from dnnserve.assembly import make_server
from dnnserve.config import ModelConfig, ServerConfig
from dnnserve.envelope import ModelKey
from dnnserve.lifecycle.reading import read_model
from dnnserve.saved_costs import FILE_NAME, SavedCosts
from dnnserve.scheduling.costs import Curve
from hypothesis import given
from hypothesis import strategies as st

from dnncore.nn import Package
from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.lifecycle.live import live
from tests.server.packages import make_package, make_repository
from tests.server.serving import serving

KEY = ModelKey("digits", 1)
MS = 1_000_000


def busy(mean_ns: int = 5 * MS, rows: int = 4, batches: int = 20, max_batch_rows: int = 8) -> Curve:
    """A curve of which a warm-up has said little, and batches in service more."""
    curve = Curve.seeded(max_batch_rows, {1: 1 * MS, 8: 2 * MS}, 0)
    for now_ns in range(batches):
        curve = curve.measured(rows, mean_ns, now_ns)
    return curve


def book(path: Path, device: str = "H200", terms: str = "in a process", net: str = "abc", now_s: int = 0) -> SavedCosts:
    """Of a server with one model on cuda:0."""
    costs = SavedCosts(path, {"cuda:0": device}, terms, lambda: float(now_s))
    costs.enter(KEY, net)
    return costs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / FILE_NAME


def saved(path: Path, curve: Curve | None = None) -> bytes:
    """A file with one curve, and its bytes."""
    book(path).save({KEY: {"cuda:0": busy() if curve is None else curve}})
    return path.read_bytes()


def test_the_next_start_knows_what_batches_in_service_took_and_not_what_a_warm_up_did(path: Path) -> None:
    saved(path)
    learned = book(path).recall("cuda:0", KEY, 8, {})
    assert learned is not None
    assert [(rows, batches) for rows, _, batches in learned.points] == [(4, 20)]
    assert learned.points[0][1] == pytest.approx(5 * MS)
    curve = Curve.seeded(8, {1: 1 * MS, 4: 3 * MS, 8: 9 * MS}, 0, learned)
    assert [curve.mean_ns(rows) for rows in (1, 4, 8)] == [1 * MS, pytest.approx(5 * MS), 9 * MS]


def test_what_is_known_from_earlier_is_settled_so_that_one_hiccup_moves_it_by_little(path: Path) -> None:
    saved(path)
    curve = Curve.seeded(8, {4: 3 * MS}, 0, book(path).recall("cuda:0", KEY, 8, {}))
    assert curve.measured(4, 1000 * MS, 1).mean_ns(4) < 6 * MS


@pytest.mark.parametrize(
    "other", [{"device": "H100"}, {"terms": "in a thread"}, {"net": "def"}], ids=["device", "terms", "net"]
)
def test_what_other_devices_or_nets_took_is_not_used(path: Path, other: dict[str, str]) -> None:
    saved(path)
    assert book(path, **other).recall("cuda:0", KEY, 8, {}) is None  # type: ignore[arg-type]


def test_what_batches_up_to_another_size_took_is_not_used(path: Path) -> None:
    saved(path)
    assert book(path).recall("cuda:0", KEY, 16, {}) is None


def test_what_another_version_of_dnncore_took_is_not_used_and_the_log_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(path)
    caplog.set_level("INFO")
    monkeypatch.setattr("dnnserve.saved_costs.__version__", "9.9.9")
    assert book(path).recall("cuda:0", KEY, 8, {}) is None
    assert "1 curves of other versions of dnncore are left alone" in caplog.text


def test_a_warm_up_that_takes_twice_as_long_as_service_did_is_believed_instead(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(path)
    assert book(path).recall("cuda:0", KEY, 8, {1: 900 * MS, 4: 9 * MS}) is not None
    assert not caplog.messages
    assert book(path).recall("cuda:0", KEY, 8, {4: 11 * MS}) is None
    assert "what batches of digits/1 took on cuda:0 before holds no more" in caplog.text


def test_servers_that_share_the_file_add_to_it(path: Path) -> None:
    first, second = book(path, net="abc"), book(path, net="def")
    first.save({KEY: {"cuda:0": busy(5 * MS)}})
    second.save({KEY: {"cuda:0": busy(7 * MS)}})
    for net, mean_ms in (("abc", 5), ("def", 7)):
        learned = book(path, net=net).recall("cuda:0", KEY, 8, {})
        assert learned is not None
        assert learned.points[0][1] == pytest.approx(mean_ms * MS)


def test_of_two_devices_of_a_kind_the_one_that_ran_more_is_kept(path: Path) -> None:
    costs = SavedCosts(path, {"cuda:0": "H200", "cuda:1": "H200"}, "in a process")
    costs.enter(KEY, "abc")
    costs.save({KEY: {"cuda:0": busy(5 * MS, batches=30), "cuda:1": busy(7 * MS, batches=10)}})
    learned = book(path).recall("cuda:0", KEY, 8, {})
    assert learned is not None
    assert learned.points[0][2] == 30


def test_the_file_keeps_those_that_were_saved_last(path: Path) -> None:
    for number in range(300):
        book(path, net=f"net {number}", now_s=number).save({KEY: {"cuda:0": busy()}})
    nets = {curve["net"] for curve in json.loads(path.read_bytes())["curves"]}
    assert nets == {f"net {number}" for number in range(44, 300)}
    assert path.stat().st_size < 1 << 18


DAMAGE = {
    "empty": lambda _: b"",
    "cut off": lambda data: data[:-20],
    "no JSON": lambda data: data.replace(b":", b"="),
    "no text": lambda data: b"\xff" + data,
    "another format": lambda data: data.replace(b'"format": 1', b'"format": 2'),
    "no object": lambda _: b"[1, 2]",
    "deep": lambda _: b"[" * 100_000,
    "too large": lambda data: data + b" " * (1 << 20),
    "a key missing": lambda data: data.replace(b'"scatter"', b'"shatter"'),
    "not finite": lambda data: data.replace(b'"scatter": ', b'"scatter": Infinity, "x": '),
    "negative": lambda data: data.replace(b'"points": [[4, ', b'"points": [[-4, '),
    "a truth for a number": lambda data: data.replace(b'"max_batch_rows": 8', b'"max_batch_rows": true'),
    "a number for a text": lambda data: data.replace(b'"net": "abc"', b'"net": 3'),
    "no points": lambda _: json.dumps(
        {"format": 1, "curves": [dict.fromkeys(("version", "device", "terms", "net"), "") | {"points": []}]}
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_said_to_be_so_and_written_anew(
    path: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    assert callable(damage)
    good = saved(path)
    bad = damage(good)
    assert bad != good
    path.write_bytes(bad)
    costs = book(path)
    assert costs.recall("cuda:0", KEY, 8, {}) is None
    (line,) = caplog.messages
    assert f"{path} is damaged" in line
    costs.save({KEY: {"cuda:0": busy()}})
    assert path.read_bytes() == good
    assert len(caplog.messages) == 1


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 20))
def test_no_bytes_of_the_file_keep_a_server_from_its_start(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, position: int, gone: int
) -> None:
    path = tmp_path_factory.mktemp("costs") / FILE_NAME
    data = saved(path)
    path.write_bytes(data[:position] + noise + data[position + gone :])
    learned = book(path).recall("cuda:0", KEY, 8, {})
    curve = Curve.seeded(8, {1: 1 * MS}, 0, learned)
    means = [curve.mean_ns(rows) for rows in range(1, 9)]
    assert means == sorted(means)
    assert means[0] > 0
    assert curve.bound_ns(8) < 1 << 62


def test_a_file_that_cannot_be_written_is_logged_once_and_written_when_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache" / FILE_NAME
    path.parent.touch()  # a file where a folder should be
    costs = book(path)
    caplog.clear()
    for _ in range(3):
        costs.save({KEY: {"cuda:0": busy()}})
    (line,) = [text for text in caplog.messages if "cannot be saved" in text]
    assert "--no-save-costs" in line
    path.parent.unlink()
    costs.save({KEY: {"cuda:0": busy()}})
    assert book(path).recall("cuda:0", KEY, 8, {}) is not None


def test_where_nothing_was_learned_nothing_is_written(path: Path) -> None:
    costs = book(path)
    costs.save({KEY: {"cuda:0": Curve.seeded(8, {1: 1 * MS}, 0), "cuda:1": busy()}, ModelKey("other", 1): {}})
    assert not path.exists()
    costs.save({KEY: {"cuda:0": busy()}})
    written_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    costs.save({KEY: {"cuda:0": busy()}})
    assert path.stat().st_mtime_ns == 0 != written_ns


def settings(precision: str | None = None) -> ModelConfig:
    return ModelConfig(8, 0.0, precision, None, 0)


def test_a_net_that_was_trained_anew_is_the_same_and_one_of_other_structure_or_precision_is_not() -> None:
    def digest(package: Package, precision: str | None = None, devices: str = "cuda:0") -> str:
        return read_model(KEY, package, settings(precision), [devices])[1].digest

    package = make_package(seed=1)
    assert digest(package) == digest(make_package(seed=2)) == digest(package, "fp32")
    without = Package("digits", package.graph, package.weights, None, None)
    assert len({digest(package), digest(package, "fp16"), digest(without)}) == 3


def config(folder: Path, **settings: object) -> ServerConfig:
    make_package().save(folder / "digits")
    common = {"devices": "cpu", "grpc_port": 0, "metrics_port": 0, "lame_duck_seconds": 0, "warm_up_seconds": 0}
    return ServerConfig(model=folder / "digits", **(common | settings))  # type: ignore[arg-type]


def costs_after(config: ServerConfig, requests: int) -> Mapping[str, Curve]:
    """Start a server, send it so many requests, and stop it: what it knew of batches before the first."""
    server = make_server(config)
    server.start()
    before = server.scheduler.costs()[KEY]
    with Client(server.addresses.grpc, model="digits", timeout_s=PATIENCE_S) as client:
        for _ in range(requests):
            client.infer({"data": np.zeros((2, 1, 8, 8), np.float32)})
    assert server.drain()
    return before


def test_a_restarted_server_begins_with_what_batches_took_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    first = costs_after(config(tmp_path), 5)["cpu"]
    assert first.mean_ns(2) == 0  # without a warm-up nothing is known
    second = costs_after(config(tmp_path), 0)["cpu"]
    assert second.mean_ns(2) > 0
    point = next(cost for size, cost in zip(second.sizes, second.costs, strict=True) if size == 2)
    assert point is not None
    assert point.batches == 5
    (curve,) = json.loads((tmp_path / "cache" / FILE_NAME).read_bytes())["curves"]
    assert (curve["terms"], curve["max_batch_rows"]) == ("in a thread", 32)


def test_a_server_that_shall_not_save_costs_neither_reads_nor_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    costs_after(config(tmp_path, save_costs=False), 5)
    assert not (tmp_path / "cache").exists()
    costs_after(config(tmp_path), 5)
    assert costs_after(config(tmp_path, save_costs=False), 0)["cpu"].mean_ns(2) == 0


def test_a_user_without_a_home_is_served_and_told_that_costs_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DNNCORE_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    costs_after(config(tmp_path), 1)
    (line,) = [text for text in caplog.messages if "not saved" in text]
    assert "DNNCORE_CACHE_DIR" in line


def test_a_model_that_is_loaded_again_begins_with_what_its_batches_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    make_repository(tmp_path / "models")
    with live(tmp_path / "models", repository_mode="explicit", load_models=("faces",), save_costs=True) as (
        server,
        client,
    ):
        with Client(server.addresses.grpc, model="faces", timeout_s=PATIENCE_S) as asking:
            for _ in range(4):
                asking.infer({"data": np.zeros((2, 1, 8, 8), np.float32)})
        wait_until(lambda: server.scheduler.costs()[ModelKey("faces", 7)]["cpu"].learned() is not None)
        server._save_costs()
        for action in ("unload", "load"):
            assert client.post(f"/v2/repository/models/faces/{action}", {})[0] == 200
        ((key, curves),) = server.scheduler.costs().items()
        assert key == ModelKey("faces", 7, key.load)
        assert curves["cpu"].mean_ns(2) > 0


def test_a_server_whose_models_nobody_has_read_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    with serving(Lab(), save_costs=True) as (_, client):
        client.send().result(PATIENCE_S)
    assert not list(tmp_path.iterdir())
