"""Models that come and go under a running server: what clients, operators and metrics see of it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.config import ModelSection
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError

from dnncore import Handle
from tests.server.fakes import PATIENCE_S, wait_until
from tests.server.lifecycle.live import Load, add_version, expected, live
from tests.server.packages import make_package
from tests.server.serving import status

CODE = grpc.StatusCode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add_version(tmp_path, 1)
    add_version(tmp_path, 7, "faces")
    return tmp_path


@pytest.mark.parametrize(("front_ends", "engines", "switches"), [(0, "thread", 5), (2, "process", 2)])
def test_a_switch_under_load_fails_no_request(root: Path, front_ends: int, engines: str, switches: int) -> None:
    settings = {"repository_mode": "explicit", "load_models": ["*"], "engines": engines}
    with live(root, front_ends=front_ends, **settings) as (server, client):
        with Load(server, 4) as load:
            for version in map(str, range(1, switches + 1)):
                wait_until(lambda version=version: load.answers[version] > 250)  # type: ignore[misc]
                add_version(root, int(version) + 1)
                client.load("digits").result(PATIENCE_S)
                wait_until(lambda version=version: client.index()["digits", version][0] == "UNAVAILABLE")  # type: ignore[misc]
            wait_until(lambda: load.answers[str(switches + 1)] > 250)
        assert load.errors == []
        assert client.index(ready=True).keys() == {("digits", str(switches + 1)), ("faces", "7")}
        assert status(client.infer_digits("1"))[0] is CODE.NOT_FOUND
        metrics = client.metrics()
        assert set(metrics["dnnserve_model_loads_total"]) == {("digits", "loaded", str(switches + 1))}
        assert set(metrics["dnnserve_model_load_seconds"]) == {("digits", str(switches + 1))}
        assert ("digits", "1") not in metrics["dnnserve_queue_depth"]


def test_a_bad_version_is_told_and_the_old_one_serves(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with live(root, repository_mode="explicit", load_models=["digits"]) as (_, client):
        add_version(root, 2)
        (root / "digits" / "2" / "weights.safetensors").write_bytes(b"junk")
        code, text = status(client.load("digits"))
        assert code is CODE.FAILED_PRECONDITION
        assert "weights.safetensors" in text
        index = client.index()
        assert index["digits", "1"] == ("READY", "")
        assert index["digits", "2"][0] == "UNAVAILABLE"
        assert "weights.safetensors" in index["digits", "2"][1]
        assert client.infer_digits().result(PATIENCE_S).model_version == "1"
        assert client.metrics()["dnnserve_model_state"]["digits", "UNAVAILABLE", "2"] == 1
        assert client.page("/readyz")[0] == 200
        assert "digits/2 cannot be loaded; what was served goes on" in caplog.text
        add_version(root, 2)  # mended
        client.load("digits").result(PATIENCE_S)
        assert client.infer_digits().result(PATIENCE_S).model_version == "2"


@pytest.mark.parametrize("file", ["model.json", "weights.safetensors"])
@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_a_fifo_in_place_of_a_file_fails_its_version_alone(root: Path, mode: str, file: str) -> None:
    settings: dict[str, Any] = {"repository_poll_seconds": 0.05} if mode == "poll" else {"load_models": ["*"]}
    with live(root, repository_mode=mode, **settings) as (_, client):
        add_version(root / ".staging", 2)
        staged = root / ".staging" / "digits" / "2"
        (staged / file).unlink()
        os.mkfifo(staged / file)
        staged.rename(root / "digits" / "2")
        if mode == "explicit":
            assert status(client.load("digits"))[0] is CODE.FAILED_PRECONDITION
        wait_until(lambda: f"{file} is a FIFO" in client.index().get(("digits", "2"), ("", ""))[1])
        assert client.infer_digits().result(PATIENCE_S).model_version == "1"
        assert client.infer_digits(name="faces").result(PATIENCE_S).model_version == "7"
        shutil.rmtree(root / "digits" / "2")
        add_version(root, 2)  # mended
        if mode == "explicit":
            client.load("digits").result(PATIENCE_S)
        wait_until(lambda: client.infer_digits().result(PATIENCE_S).model_version == "2")


def test_a_server_begins_without_the_version_that_has_a_fifo_in_place_of_its_weights(root: Path) -> None:
    (root / "faces" / "7" / "weights.safetensors").unlink()
    os.mkfifo(root / "faces" / "7" / "weights.safetensors")
    with live(root, skip_bad_models=True) as (_, client):
        assert client.index() == {("digits", "1"): ("READY", "")}


def test_what_does_not_fit_is_refused_with_figures_and_nothing_of_it_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live(root, repository_mode="explicit", load_models=["digits"]) as (_, client):
        with Handle("cpu") as handle:
            monkeypatch.setattr(type(handle.device), "free_bytes", lambda _own: 1 << 20)
        code, text = status(client.load("faces"))
        assert code is CODE.FAILED_PRECONDITION
        assert "needs" in text
        assert "1.0 MiB of" in text
        assert client.index()["faces", "7"][0] == "UNAVAILABLE"
        assert client.infer_digits().result(PATIENCE_S).model_version == "1"
        assert client.metrics()["dnnserve_model_loads_total"] == {("faces", "failed", "7"): 1}
        client.unload("faces").result(PATIENCE_S)
        wait_until(lambda: "dnnserve_model_loads_total" not in client.metrics())


def test_a_model_is_unloaded_when_what_waits_for_it_has_been_answered(root: Path) -> None:
    settings = {"repository_mode": "explicit", "load_models": ["*"], "hold_until_requests": 100}
    with live(root, **settings) as (server, client):
        waiting = [client.infer_digits() for _ in range(5)]
        wait_until(lambda: server.scheduler.in_flight == 5)
        client.unload("digits").result(PATIENCE_S)
        for call in waiting:
            answer = call.result(0)  # it has come before the unload's
            np.testing.assert_allclose(
                np.frombuffer(answer.raw_output_contents[0], "<f4"), expected(1)[0], rtol=1e-5, atol=1e-7
            )
        assert client.index()["digits", "1"] == ("UNAVAILABLE", "not loaded")
        assert status(client.infer_digits())[0] is CODE.NOT_FOUND
        assert status(client.unload("digits"))[0] is CODE.NOT_FOUND
        assert status(client.load("nope"))[0] is CODE.NOT_FOUND
        client.load("digits").result(PATIENCE_S)
        assert client.index()["digits", "1"] == ("READY", "")


def test_poll_sees_what_comes_and_goes(root: Path) -> None:
    with live(root, repository_mode="poll", repository_poll_seconds=0.05) as (_, client):
        assert status(client.load("digits"))[0] is CODE.FAILED_PRECONDITION
        add_version(root, 2)
        wait_until(lambda: client.infer_digits().result(PATIENCE_S).model_version == "2")
        (root / "digits" / "newest").mkdir()  # no version: named in the log, and left alone
        add_version(root, 3, "letters")
        wait_until(lambda: client.index().get(("letters", "3")) == ("READY", ""))
        shutil.rmtree(root / "digits" / "2")
        wait_until(lambda: client.infer_digits().result(PATIENCE_S).model_version == "1")
        shutil.rmtree(root / "faces")
        wait_until(lambda: ("faces", "7") not in client.index())
        assert client.infer_digits().result(PATIENCE_S).model_version == "1"


def test_a_folder_that_cannot_be_read_stops_nothing_and_its_model_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with live(root, repository_mode="poll", repository_poll_seconds=0.05) as (_, client):
        listing = Path.iterdir

        def forbidden(folder: Path) -> Iterator[Path]:
            if folder.name == "faces":
                raise PermissionError(13, "Permission denied", str(folder))
            return listing(folder)

        told = "faces' cannot be read, and the model stays as it is"
        monkeypatch.setattr(Path, "iterdir", forbidden)
        wait_until(lambda: told in caplog.text)
        add_version(root, 2)
        wait_until(lambda: client.infer_digits().result(PATIENCE_S).model_version == "2")
        assert client.infer_digits(name="faces").result(PATIENCE_S).model_version == "7"
        assert caplog.text.count(told) == 1
        monkeypatch.setattr(Path, "iterdir", listing)
        add_version(root, 3)
        wait_until(lambda: client.infer_digits().result(PATIENCE_S).model_version == "3")
        monkeypatch.setattr(Path, "iterdir", forbidden)
        wait_until(lambda: caplog.text.count(told) == 2)


def test_a_version_whose_files_change_is_loaded_anew(root: Path) -> None:
    with live(root, repository_mode="explicit", load_models=["digits"]) as (_, client):
        client.load("digits").result(PATIENCE_S)  # nothing has changed: nothing happens
        assert "dnnserve_model_loads_total" not in client.metrics()
        make_package("digits", 9).save(root / "digits" / "1")
        client.load("digits").result(PATIENCE_S)
        answer = client.infer_digits("1").result(PATIENCE_S)
        outputs = np.frombuffer(answer.raw_output_contents[0], "<f4")
        np.testing.assert_allclose(outputs, expected(9)[0], rtol=1e-5, atol=1e-7)


def test_over_http_the_repository_is_asked_by_tritons_paths(root: Path) -> None:
    with live(root, repository_mode="explicit", load_models=["digits"]) as (_, client):
        code, index = client.post("/v2/repository/index", {"ready": True})
        assert (code, index) == (200, [{"name": "digits", "version": "1", "state": "READY", "reason": ""}])
        assert client.post("/v2/repository/models/faces/load")[0] == 200
        assert {entry["name"]: entry["state"] for entry in client.post("/v2/repository/index")[1]} == {
            "digits": "READY",
            "faces": "READY",
        }
        code, body = client.post("/v2/repository/models/faces/load", {"parameters": {"config": "{}"}})
        assert (code, "'config' of a load is not supported" in body["error"]) == (400, True)
        body = {"parameters": {"unload_dependents": False}}
        assert client.post("/v2/repository/models/faces/unload", body)[0] == 200
        assert client.post("/v2/repository/models/nope/load")[0] == 404


def test_a_configuration_that_is_read_again_holds_for_models_limits_and_log(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Which puts the level back in the end.
    with caplog.at_level(logging.INFO), live(root) as (server, client):
        config = server._config
        sections = {"digits": ModelSection(max_batch_rows=3, precision="fp16", default_deadline_ms=0.001)}
        server.reconfigure(replace(config, models=sections, max_queue_requests=7, grpc_port=1, log_level="debug"))
        assert logging.getLogger().level == logging.DEBUG
        request = inference.ModelConfigRequest(name="digits")
        wait_until(lambda: client.infer.ModelConfig(request).config.max_batch_size == 3)
        request = inference.ModelConfigRequest(name="faces")
        assert client.infer.ModelConfig(request).config.max_batch_size == 32
        assert status(client.infer_digits(timeout=None))[0] is CODE.DEADLINE_EXCEEDED
        assert client.infer_digits(name="faces").result(PATIENCE_S).model_version == "7"
        assert "hold from the next start on: grpc_port" in caplog.text
        assert server.scheduler._dispatcher.limits(ModelKey("faces", 7)).max_queue_requests == 7


def test_a_model_may_be_on_some_devices_alone(root: Path) -> None:
    sections = {"digits": ModelSection(devices="cpu"), "faces": ModelSection(max_batch_rows=4)}
    with live(root, devices="cpu,cpu", models=sections) as (server, client):
        assert client.infer_digits().result(PATIENCE_S).model_version == "1"
        assert len(server.device_labels) == 2

    with pytest.raises(StartError, match=r"models\.digits: devices cuda:7 are not among the server's: cpu"):  # noqa: SIM117
        with live(root, models={"digits": ModelSection(devices="cuda:7")}):
            pass
