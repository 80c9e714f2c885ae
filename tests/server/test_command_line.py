"""`dnnserve` as a process of its own, with a real package on the CPU."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc
from dnnapi.v1 import classifier_pb2 as classifier
from dnnapi.v1 import classifier_pb2_grpc as classifier_grpc
from dnnserve.command_line import parse_arguments
from dnnserve.config import ServerConfig
from PIL import Image

from tests.processes import children, is_running
from tests.server.fakes import PATIENCE_S, wait_until
from tests.server.packages import LABELS, make_package, make_repository, probabilities

COMMAND = (sys.executable, "-m", "dnnserve")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("models"))


def run(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@contextmanager
def started(
    ready_file: Path,
    *arguments: object,
    shell: str = "",
    stdout: int | IO[str] = subprocess.PIPE,
    stderr: int | IO[str] = subprocess.PIPE,
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A server that is ready, and what it says of itself.

    Args:
        ready_file: Where it says so.
        arguments: Of its command line.
        shell: What a shell does before it becomes the server.
        stdout, stderr: As `Popen` has them.
    """
    command = [
        *(["sh", "-c", f'{shell}; exec "$0" "$@"'] if shell else []),
        *COMMAND,
        "--grpc-port",
        "0",
        "--metrics-port",
        "0",
        "--lame-duck-seconds",
        "0",
        "--no-save-costs",  # no test depends on one before
        "--ready-file",
        str(ready_file),
    ]
    process = subprocess.Popen([*command, *map(str, arguments)], stdout=stdout, stderr=stderr, text=True)
    try:
        wait_until(lambda: ready_file.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        yield process, json.loads(ready_file.read_text())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def without(tmp_path: Path, *packages: str) -> Path:
    """A folder for the front of the path in which these packages cannot be imported."""
    for package in packages:
        (tmp_path / f"{package}.py").write_text(
            f'raise ModuleNotFoundError("{package} was taken out", name="{package}")'
        )
    return tmp_path


def test_help_needs_none_of_the_servers_packages(tmp_path: Path) -> None:
    result = run("--help", path=without(tmp_path, "grpc", "prometheus_client", "PIL", "pydantic", "pydantic_settings"))
    assert result.returncode == 0, result.stderr
    assert "--model-repository" in result.stdout


@pytest.mark.parametrize("package", ["grpc", "pydantic"])
def test_running_without_the_server_extra_says_what_to_install(tmp_path: Path, models: Path, package: str) -> None:
    result = run("--model-repository", models, path=without(tmp_path, package))
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith(f"{package} is not installed: pip install 'dnncore[server]'")


REFUSED = {
    "no model": ([], "exactly one of --model-repository DIR and --model PATH"),
    "both": (["--model", "a", "--model-repository", "b"], "exactly one"),
    "port": (["--model", "a", "--grpc-port", "65536"], "--grpc-port 65536 is out of range; use 0 to 65535"),
    "batch": (["--model", "a", "--max-batch", "0"], "--max-batch 0 is out of range"),
    "no package": (["--model", "/nowhere"], "/nowhere"),
    "no repository": (["--model-repository", "/nowhere"], "/nowhere"),
    "device name": (["--model", "a", "--devices", "gpu"], "'gpu'"),
    "no such device": (["--model", "a", "--devices", "cuda:4095"], "cuda:4095|PyCUDA|driver"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line_with_exit_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert re.search(f"^dnnserve: error: .*({message})", result.stderr.splitlines()[-1]), result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_refused_in_one_line_with_exit_code_2(models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--model-repository", models, "--devices", "cpu", "--grpc-port", port, "--metrics-port", 0)
    assert result.returncode == 2
    assert f"127.0.0.1:{port} cannot be had" in result.stderr.splitlines()[-1]
    assert "--grpc-port" in result.stderr.splitlines()[-1]


def test_a_ready_file_that_cannot_be_written_stops_the_server_in_order(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    ports = ("--grpc-port", 0, "--metrics-port", 0)
    result = run("--model-repository", models, "--devices", "cpu", *ports, "--ready-file", folder)
    assert result.returncode == 2
    *log, last = result.stderr.splitlines()
    assert re.search(f"^dnnserve: error: ready file .*{folder}.*--ready-file$", last)
    assert log[-1].endswith("stopped")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_served_package_answers_as_the_net_itself_does(models: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (8, 8), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    package = make_package(seed=2)
    expected = probabilities(package, package.of_images[0].normalize(pixels[None, :, :, None]))[0]
    ready_file = tmp_path / "ready.json"
    arguments = ("--model-repository", models, "--all-versions", "--devices", "cpu,cpu", "--log-format", "json")
    with started(ready_file, *arguments) as (process, ready):
        assert ready["models"] == ["digits/1", "digits/2", "faces/7"]
        assert ready["devices"] == ["cpu", "cpu#1"]
        with grpc.insecure_channel(str(ready["grpc"])) as channel:
            stub = classifier_grpc.ClassifierServiceStub(channel)
            request = classifier.ClassifyRequest(model_name="digits", images=[stream.getvalue()], top_k=10)
            response = stub.Classify(request, timeout=PATIENCE_S)
        assert response.model_version == "2"
        labels = response.classifications[0].labels
        np.testing.assert_allclose([label.probability for label in labels], np.sort(expected)[::-1], rtol=1e-5)
        assert labels[0].name == LABELS[int(expected.argmax())]
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert output.startswith(f"dnnserve ready: grpc {ready['grpc']}, devices cpu, cpu#1, models digits/1")
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["level"] for line in lines] == ["INFO"] * 4
    assert lines[0]["message"].startswith("connections that may be open in this process: gRPC ")
    assert lines[1]["message"] == "calls come over the fast front end"
    assert not ready_file.exists()


def front_ends_of(pid: int) -> set[int]:
    """Processes of front ends that have begun."""
    return {each for each in children(pid) if is_running(each) and name_of(each) == "dnnserve-front"}


def name_of(pid: int) -> str:
    """As the kernel has it; of a process that is not there, none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sockets_of(pid: int) -> set[Path]:
    return {link for fd in Path(f"/proc/{pid}/fd").iterdir() if (link := fd.readlink()).name.startswith("socket:")}


def test_front_ends_are_copies_of_the_server_which_has_imported_what_they_need(models: Path, tmp_path: Path) -> None:
    request = inference.ModelConfigRequest(name="digits")

    def ask(address: object) -> None:
        with grpc.insecure_channel(str(address), [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = inference_grpc.GRPCInferenceServiceStub(channel)
            stub.ModelConfig(request, timeout=PATIENCE_S, wait_for_ready=True)

    arguments = ("--model-repository", models, "--devices", "cpu", "--front-ends", 2)
    with started(tmp_path / "ready.json", *arguments) as (process, ready):
        copies = front_ends_of(process.pid)
        assert len(copies) == 2
        lost, left = copies
        for pid in copies:
            assert Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert not sockets_of(pid) & sockets_of(process.pid)  # it would keep another's link open
        ask(ready["grpc"])
        os.kill(lost, signal.SIGKILL)
        found = set[int]()

        def has_come() -> bool:
            found.update(front_ends_of(process.pid) - copies)  # the kernel's list may lack some while a process ends
            return bool(found)

        wait_until(has_come)
        (successor,) = found
        cmdline = Path(f"/proc/{successor}/cmdline")  # of the server, until it runs its own: there are threads by now
        wait_until(lambda: b"dnnserve.front.child" in cmdline.read_bytes())
        ask(ready["grpc"])
        process.kill()
        wait_until(lambda: not is_running(left) and not is_running(successor))


def test_sighup_has_the_configuration_read_again_and_a_bad_one_changes_nothing(models: Path, tmp_path: Path) -> None:
    file, ready_file = tmp_path / "dnnserve.toml", tmp_path / "ready.json"
    file.write_text("max_batch = 4")
    request = inference.ModelConfigRequest(name="digits")
    with started(ready_file, "--model-repository", models, "--devices", "cpu", "--config", file) as (process, ready):
        assert process.stderr is not None
        with grpc.insecure_channel(str(ready["grpc"])) as channel:
            stub = inference_grpc.GRPCInferenceServiceStub(channel)
            for text, said in (
                ("max_bach = 3", "did you mean max_batch"),
                ("max_batch = 2\n[models.digts]\npriority = 1", "models.digts configures a model that is not served"),
                ("max_batch = 4\nhttp_port = 0", "hold from the next start on: http_port"),
                ("max_batch = 3", "changed: max_batch\n"),
            ):
                file.write_text(text)
                process.send_signal(signal.SIGHUP)
                while said not in process.stderr.readline():
                    pass
                if not said.startswith("changed"):
                    assert stub.ModelConfig(request, timeout=PATIENCE_S).config.max_batch_size == 4
            wait_until(lambda: stub.ModelConfig(request, timeout=PATIENCE_S).config.max_batch_size == 3)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log


def test_sigterm_under_load_loses_no_answer(models: Path, tmp_path: Path) -> None:
    request = classifier.ClassifyRequest(
        model_name="digits",
        tensor=classifier.Tensor(datatype="FP32", shape=[1, 1, 8, 8], contents=bytes(256)),
    )
    with started(tmp_path / "ready.json", "--model-repository", models, "--devices", "cpu") as (process, ready):
        codes: list[grpc.StatusCode] = []
        answered = threading.Event()

        def send_until_refused() -> None:
            with grpc.insecure_channel(str(ready["grpc"])) as channel:
                stub = classifier_grpc.ClassifierServiceStub(channel)
                for _ in range(10_000):
                    try:
                        stub.Classify(request, timeout=PATIENCE_S)
                    except grpc.RpcError as error:
                        codes.append(error.code())
                        return
                    answered.set()

        clients = [threading.Thread(target=send_until_refused) for _ in range(8)]
        for client in clients:
            client.start()
        assert answered.wait(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(PATIENCE_S)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert codes == [grpc.StatusCode.UNAVAILABLE] * 8


def test_a_signal_is_obeyed_whichever_thread_gets_it(models: Path, tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    program = f"""
import pathlib, signal, sys, threading, time
from dnnserve.__main__ import main
def stop():
    while not pathlib.Path({str(ready_file)!r}).exists():
        time.sleep(0.01)
    time.sleep(0.2)  # for the main thread to fall asleep
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=stop, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
    ports = ("--grpc-port", 0, "--metrics-port", 0, "--lame-duck-seconds", 0)
    arguments = ("--model-repository", models, "--devices", "cpu", *ports)
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments), "--ready-file", str(ready_file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "stopped" in result.stderr


def test_every_flag_reaches_the_configuration() -> None:
    arguments = (
        "--model m --host ::1 --grpc-port 1 --metrics-port 2 --devices cpu --precision fp16 --max-batch 3 --max-queue 4 "
        + (
            "--max-queue-delay-us 5 --hold-until-requests 4 --grpc-threads 7 --max-message-mib 8 --drain-seconds 9 "
            "--default-deadline-ms 10 --log-format json --ready-file r --all-versions --skip-bad-models --front-end public "
            "--max-calls 11 --max-connections 12 --max-connection-age-seconds 13 --max-connection-idle-seconds 14 "
            "--max-request-megapixels 15 --max-decoding-megapixels 16 --lame-duck-seconds 17 --access-log "
            "--max-shared-memory-input-mib 18 --no-save-costs"
        )
    )
    assert parse_arguments(arguments.split()) == ServerConfig(
        model=Path("m"),
        host="::1",
        grpc_port=1,
        metrics_port=2,
        devices="cpu",
        precision="fp16",
        max_batch_rows=3,
        max_queue_requests=4,
        max_queue_delay_us=5,
        hold_until_requests=4,
        grpc_threads=7,
        max_message_mib=8,
        drain_seconds=9,
        default_deadline_ms=10,
        log_format="json",
        ready_file=Path("r"),
        all_versions=True,
        skip_bad_models=True,
        front_end="public",
        max_calls=11,
        max_connections=12,
        max_connection_age_seconds=13,
        max_connection_idle_seconds=14,
        max_request_megapixels=15,
        max_decoding_megapixels=16,
        lame_duck_seconds=17,
        access_log=True,
        max_shared_memory_input_mib=18,
        save_costs=False,
    )


def test_no_flag_leaves_the_defaults() -> None:
    assert parse_arguments(["--model", "m"]) == ServerConfig(model=Path("m"))


@pytest.mark.parametrize("full", ["stderr", "stdout"])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_under_the_log_stops_nothing(tmp_path: Path, models: Path, full: str, log_format: str) -> None:
    arguments = "--model-repository", models, "--devices", "cpu", "--access-log", "--log-format", log_format
    with Path("/dev/full").open("w") as device:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, full: device}
        with started(tmp_path / "ready", *arguments, **streams) as (process, ready):  # type: ignore[arg-type]
            with grpc.insecure_channel(str(ready["grpc"])) as channel:
                live = inference_grpc.GRPCInferenceServiceStub(channel).ServerLive
                for _ in range(20):
                    assert live(inference.ServerLiveRequest(), timeout=PATIENCE_S).live
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
