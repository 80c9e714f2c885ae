from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from dnnclient.cli import main
from dnnclient.images import synthetic_images

from dnncore.errors import BadParamError
from tests.client.fake_server import FakeServer, image

# A shell's background jobs ignore Ctrl-C, and so would all that they start, this test's process among them: the client is to
# heed it. It says so to itself, for a `preexec_fn` would have Python fork while gRPC's threads run in this process.
_HEEDING_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "dnnclient", *sys.argv[1:]])
"""


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HEEDING_INTERRUPTS, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(*arguments: object) -> tuple[int, str, str]:
    process = _start(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Three images in a folder, with a file that is none; by name: 3, 1, 4."""
    paths = []
    for position, index in enumerate((3, 1, 4)):
        paths.append(tmp_path / f"{position}.png")
        paths[-1].write_bytes(image(index))
    (tmp_path / "notes.txt").write_text("not an image")
    return paths


def test_classify_prints_a_line_per_image_in_order(server: FakeServer, images: list[Path]) -> None:
    status, out, err = _run("classify", *images, "--server", server.target, "--model", "digits", "--top-k", 2)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{path}: label {index} 0.5000, label {index + 1} 0.2500" for path, index in zip(images, (3, 1, 4), strict=True)
    ]


def test_classify_goes_on_after_a_failed_image_and_says_which(
    server: FakeServer, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        str(path) for path in (images[0], images[0].with_name("none.png"), images[0].with_name("notes.txt"), images[2])
    ]
    assert main(["classify", *paths, "--server", server.target, "--model", "digits", "--top-k", "1"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{paths[0]}: label 3 0.5000", f"{paths[3]}: label 4 0.5000"]
    assert [line.split(": ")[1:3] for line in err.splitlines()] == [
        [paths[1], "FileNotFoundError"],
        [paths[2], "INVALID_ARGUMENT"],
    ]


def test_classify_prints_json(server: FakeServer, images: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(images[1]), str(images[1].with_name("notes.txt"))]
    assert main(["classify", *paths, "--server", server.target, "--model", "digits", "--top-k", "1", "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good == {"image": paths[0], "predictions": [{"index": 1, "label": "label 1", "probability": 0.5}]}
    assert bad["image"] == paths[1]
    assert bad["error"]["code"] == "INVALID_ARGUMENT"


def test_load_reports_as_text_and_json(server: FakeServer, images: list[Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    status, out, err = _run(
        *("load", "--images", tmp_path, "--server", server.target, "--model", "digits"),
        *("--requests", 30, "--concurrency", 4, "--json", report),
    )
    assert (status, err) == (0, "")
    assert "model     digits/2" in out
    assert "closed loop, 4 at a time: 30 requests" in out
    values = json.loads(report.read_text())
    assert values["statuses"] == {"OK": 30}
    assert values["send_lag"] is None
    assert {bytes(request.images[0]) for request in server.requests} == {image(3), image(1), image(4)}


def test_there_are_no_synthetic_images_for_other_tensors() -> None:
    for shape in ((), (3,), (2, 3, 8, 8)):
        with pytest.raises(BadParamError, match=r"synthetic images are \[C, H, W\]"):
            synthetic_images(shape, 1)


def test_load_sends_synthetic_images_at_a_rate(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--rate",
        "400",
        "--poisson",
        "--duration",
        "0.1",
        "--deadline-ms",
        "5000,6000",
        "--progress",
        "--json",
        "-",
    ]
    assert main(["load", "--synthetic", "--server", server.target, "--model", "digits", *options]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["load"] == "open loop, 400 requests/s, Poisson"
    assert values["num_requests"] == server.num_calls > 0
    assert values["send_lag"]["max"] >= 0
    assert values["num_good"] == values["num_requests"] == sum(count for _, count in values["histogram"])
    assert [found["deadline_s"] for found in values["deadlines"]] == [5.0, 6.0]
    assert all(request.tensor.datatype == "UINT8" for request in server.requests)
    assert len({request.tensor.contents for request in server.requests}) == len(server.requests)


def test_a_token_from_a_file_is_shown_with_every_call_and_a_busy_server_is_asked_again(
    server: FakeServer, images: list[Path], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    server.refusals.append((grpc.StatusCode.RESOURCE_EXHAUSTED, "1"))
    arguments = ["--server", server.target, "--model", "digits", "--token-file", str(token)]
    assert main(["classify", str(images[0]), *arguments]) == 0
    assert main(["load", "--synthetic", "--requests", "2", *arguments]) == 0
    assert [seen.get("authorization") for seen in server.metadata] == ["Bearer s3cret"] * 4


def test_a_priority_is_stated_with_every_request(server: FakeServer, images: list[Path]) -> None:
    arguments = ["--server", server.target, "--model", "digits", "--priority", "1"]
    assert main(["classify", str(images[0]), *arguments]) == 0
    assert main(["load", "--synthetic", "--requests", "2", *arguments]) == 0
    assert [seen.get("dnn-priority") for seen in server.metadata] == ["1"] * 3


def test_load_with_failed_requests_has_status_1(
    server: FakeServer, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = str(images[0].with_name("notes.txt"))
    options = ["--server", server.target, "--model", "digits", "--requests", "4", "--concurrency", "1"]
    assert main(["load", "--images", str(images[0]), bad, *options]) == 1
    assert "OK 2  INVALID_ARGUMENT 2" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_one_line(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--synthetic", "--server", nobody, "--model", "digits"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dnnclient: UNAVAILABLE: ")
    assert err.count("\n") == 1


def test_an_interrupt_ends_a_run_without_a_traceback(server: FakeServer) -> None:
    process = _start("load", "--synthetic", "--server", server.target, "--model", "digits", "--duration", 300)
    try:
        server.wait_for_calls(10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["classify", "--model", "digits"], "IMAGE"),
        (["classify", "a.png"], "--model"),
        (["classify", "a.png", "--model", "digits", "--top-k", "0"], "invalid positive int value: '0'"),
        (["classify", "a.png", "--model", "digits", "--retries", "-1"], "invalid number value: '-1'"),
        (["classify", "a.png", "--model", "digits", "--tls-key", "k.pem"], "need --tls-ca"),
        (
            ["load", "--model", "digits", "--synthetic", "--deadline-ms", "5,0"],
            "invalid list of positive numbers value",
        ),
        (["load", "--model", "digits"], "--images --synthetic"),
        (["load", "--model", "digits", "--synthetic", "--rate", "nan"], "invalid positive float value: 'nan'"),
        (["load", "--model", "digits", "--synthetic", "--rate", "5", "--concurrency", "5"], "not allowed with"),
        (["load", "--model", "digits", "--synthetic", "--requests", "5", "--duration", "5"], "not allowed with"),
        (["load", "--model", "digits", "--synthetic", "--poisson"], "--poisson needs --rate"),
        (["load", "--model", "digits", "--images", "/nowhere"], "/nowhere is neither a file nor a folder"),
    ],
    ids=str,
)
def test_a_command_line_that_cannot_be_right_has_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(arguments)
    except SystemExit as exit_:  # how argparse ends
        status = exit_.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_images_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--model", "digits", "--images", str(tmp_path)]) == 2
    assert ".png, .jpg, .jpeg, .webp" in capsys.readouterr().err
