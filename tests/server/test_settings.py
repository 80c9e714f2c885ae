"""Settings from flags, environment and file: which comes first, what is refused, and that what is printed reads back."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from dnnserve.assembly import make_server
from dnnserve.command_line import parse_arguments
from dnnserve.config import ModelConfig, ModelSection, ServerConfig
from dnnserve.envelope import ModelKey
from dnnserve.lifecycle import reading

from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.nn import Model
from dnncore.nn.calibration import Calibration
from dnncore.nn.passes import for_inference
from tests.server.packages import make_package, make_repository


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DNNSERVE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_flag_comes_before_the_environment_and_that_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.toml").write_text('model = "file"\ngrpc_port = 1\nmetrics_port = 1\nmax_queue = 1\nall_versions = true\n')
    monkeypatch.setenv("DNNSERVE_METRICS_PORT", "2")
    monkeypatch.setenv("DNNSERVE_MAX_QUEUE", "2")
    monkeypatch.setenv("DNNSERVE_ALL_VERSIONS", "false")
    monkeypatch.setenv("DNNSERVE_HOST", "")  # as if it were not there
    expected = ServerConfig(model=Path("file"), grpc_port=1, metrics_port=2, max_queue_requests=3)
    assert parse_arguments(["--config", "c.toml", "--max-queue", "3"]) == expected
    monkeypatch.setenv("DNNSERVE_CONFIG", "c.toml")
    assert parse_arguments(["--max-queue", "3"]) == expected


def test_every_setting_is_known_in_all_three_places(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--print-config", "--model", "m"])
    keys = {line.removeprefix("# ").split()[0] for line in capsys.readouterr().out.splitlines()}
    assert len(keys | {"models"}) == len(fields(ServerConfig))
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    help_text = capsys.readouterr().out
    assert [key for key in keys if f"--{key.replace('_', '-')}" not in help_text] == []


def test_values_are_read_in_the_types_of_their_flags() -> None:
    Path("c.toml").write_text(
        'model = "m"\nshape = ["x=N,3,4,4"]\nlabels = "l.txt"\nprecision = "bf16"\ndrain_seconds = 1\n'
    )
    flags = ["--model", "m", "--shape", "x=N,3,4,4", "--labels", "l.txt", "--precision", "bf16", "--drain-seconds", "1"]
    read, typed = parse_arguments(["--config", "c.toml"]), parse_arguments(flags)
    assert read == typed
    assert isinstance(read.labels, Path)


def test_a_place_of_higher_rank_that_names_a_model_takes_the_repository_of_a_lower_one_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DNNSERVE_MODEL_REPOSITORY", "/models")
    assert parse_arguments(["--model", "m"]) == ServerConfig(model=Path("m"))
    monkeypatch.setenv("DNNSERVE_MODEL", "m")
    assert "give exactly one" in refusal(capsys)


REFUSED = {
    "max_bach = 1": "c.toml: max_bach is unknown; did you mean max_batch?",
    "xyzzy = 1": "c.toml: xyzzy is unknown; --help lists all that there are",
    'max_batch = "eight"': "c.toml: max_batch cannot be 'eight': Input should be a valid integer",
    "max_batch = 0": "--max-batch 0 is out of range; use 1 to 4096 (it is set by c.toml)",
    'precision = "fp8"': "c.toml: precision cannot be 'fp8': Input should be 'fp32', 'fp16', 'bf16' or 'int8'",
    'shape = "x"': "c.toml: shape cannot be 'x': 'x' is no NAME=N,3,224,224",
    "max_batch =": "configuration file c.toml is not TOML: Invalid value (at end of document)",
    'max_bach = 1\nprecision = "fp8"\nxyzzy = 1': (
        "c.toml: max_bach is unknown; did you mean max_batch?; c.toml: xyzzy is unknown; --help lists all that there are; "
        "c.toml: precision cannot be 'fp8': "
    ),
    "models = 3": "c.toml: models cannot be 3: Input should be a valid dictionary",
    "[models.digits]\nprioritty = 1": "c.toml: models.digits.prioritty is unknown; did you mean priority?",
    "[models.digits]\nxyzzy = 1": "c.toml: models.digits.xyzzy is unknown; there are default_deadline_ms, devices, ",
    "[models.digits]\npriority = 9": "models.digits: priority 9 is out of range; use 0 to 8",
    "[models.digits]\nmax_batch = 0": "models.digits: max_batch 0 is out of range; use 1 to 4096",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED)
def test_a_file_with_something_wrong_is_refused_by_the_key(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.toml").write_text(text)
    assert refusal(capsys, "--model", "m", "--config", "c.toml").startswith(f"dnnserve: error: {message}")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "DNNSERVE_MAX_BACH",
            "1",
            "environment variable DNNSERVE_MAX_BACH is unknown; did you mean DNNSERVE_MAX_BATCH?",
        ),
        ("DNNSERVE_MAX_BATCH", "no", "DNNSERVE_MAX_BATCH: max_batch cannot be 'no': Input should be a valid integer"),
        ("DNNSERVE_MAX_BATCH", "0", "--max-batch 0 is out of range; use 1 to 4096 (it is set by DNNSERVE_MAX_BATCH)"),
        ("DNNSERVE_TLS_KEY", "k", "come together; one of them is missing (--tls-key is set by DNNSERVE_TLS_KEY)"),
        ("DNNSERVE_METRICS_PORT", "8001", "are both 8001; give each a port of its own (--metrics-port is set by DNNS"),
        ("DNNSERVE_MODELS", "{", "DNNSERVE_MODELS is no JSON, which a table is in the environment: Expecting property"),
        ("DNNSERVE_CONFIG", "none.toml", "configuration file 'none.toml' does not exist; give another with --config"),
    ],
)
def test_an_environment_with_something_wrong_is_refused_by_the_variable(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert message in refusal(capsys, "--model", "m")


def test_what_kubernetes_says_of_a_service_called_dnnserve_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "tcp://10.0.0.1:8001"
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8001",
        "SERVICE_PORT_GRPC": "8001",
        "PORT": address,
        "PORT_8001_TCP": address,
        "PORT_8001_TCP_PROTO": "tcp",
        "PORT_8001_TCP_PORT": "8001",
        "PORT_8001_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"DNNSERVE_{name}", value)
    assert parse_arguments(["--model", "m"]) == ServerConfig(model=Path("m"))


SECTIONS = """
model_repository = "models"
precision = "fp16"
max_batch = 16
[models.digits]
max_batch = 8
default_deadline_ms = 50
[models."my net"]
precision = "fp32"
devices = "cuda:1"
priority = 1
"""


def test_a_model_has_what_its_section_sets_and_else_what_holds_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.toml").write_text(SECTIONS)
    monkeypatch.setenv("DNNSERVE_MODELS", json.dumps({"digits": {"max_batch": 4}, "other": {}}))
    config = parse_arguments(["--config", "c.toml", "--devices", "cpu"])
    assert config.models["digits"] == ModelSection(max_batch_rows=4, default_deadline_ms=50.0)
    assert config.of_model("digits") == ModelConfig(4, 50.0, "fp16", "cpu", 0)
    assert config.of_model("my net") == ModelConfig(16, 0.0, "fp32", "cuda:1", 1)
    assert config.of_model("faces") == config.of_model("other") == ModelConfig(16, 0.0, "fp16", "cpu", 0)


def test_the_printed_configuration_says_where_each_value_is_from_and_reads_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.toml").write_text(SECTIONS)
    monkeypatch.setenv("DNNSERVE_GRPC_PORT", "9")
    flags = ["--config", "c.toml", "--shape", "x=N,3,4,4", "--model", 'odd "\\\x7fé', "--no-all-versions"]
    with pytest.raises(SystemExit) as caught:
        parse_arguments([*flags, "--print-config"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for line in (
        "grpc_port = 9  # DNNSERVE_GRPC_PORT",
        "all_versions = false  # --all-versions",
        "max_batch = 16  # c.toml",
    ):
        assert line in printed.splitlines()
    expected = parse_arguments(flags)
    monkeypatch.delenv("DNNSERVE_GRPC_PORT")
    Path("again.toml").write_text(printed)
    assert parse_arguments(["--config", "again.toml"]) == expected
    assert tomllib.loads(printed)["models"]["my net"] == {"precision": "fp32", "devices": "cuda:1", "priority": 1}


def test_models_are_loaded_as_their_sections_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(folder / "models")
    computed_in: list[DType] = []

    def compile_for(model: Model, precision: DType, *, calibration: Calibration | None, ranked: int | None) -> Model:
        computed_in.append(precision)
        return for_inference(model, precision, calibration=calibration, ranked=ranked)

    monkeypatch.setattr(reading, "for_inference", compile_for)
    models = {
        "digits": ModelSection(max_batch_rows=3, default_deadline_ms=20.0, precision="fp16"),
        "faces": ModelSection(priority=1),
    }
    config = ServerConfig(model_repository=folder / "models", devices="cpu", grpc_port=0, metrics_port=0, models=models)
    server = make_server(config)
    try:
        specs = {
            spec.key.name: (spec.max_batch_rows, spec.default_deadline_ns, spec.priority) for spec in server._specs
        }
    finally:
        server.drain()
    assert specs == {"digits": (3, 20_000_000, 0), "faces": (32, 0, 1)}
    assert computed_in == [DType.FLOAT16, DType.FLOAT32]
    with pytest.raises(
        ConfigError, match=r"models\.digts configures a model that is not served; served are digits, faces"
    ):
        make_server(ServerConfig(model_repository=folder / "models", devices="cpu", models={"digts": ModelSection()}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, DType.FLOAT16),
        ({"precision": "fp32"}, DType.FLOAT32),
        ({"models": {"digits": ModelSection(precision="bf16")}, "precision": "fp32"}, DType.BFLOAT16),
    ],
    ids=["as the package says", "a flag wins", "and the model's own section over that"],
)
def test_a_model_is_computed_as_its_package_says_unless_it_is_set_otherwise(
    settings: dict[str, Any], expected: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_in: list[DType] = []

    def compile_for(model: Model, precision: DType, *, calibration: Calibration | None, ranked: int | None) -> Model:
        computed_in.append(precision)
        return for_inference(model, precision, calibration=calibration, ranked=ranked)

    monkeypatch.setattr(reading, "for_inference", compile_for)
    package = replace(make_package(), precision=DType.FLOAT16)
    config = ServerConfig(model=Path("digits"), **settings)
    reading.read_model(ModelKey("digits", 1), package, config.of_model("digits"), ["cpu"])
    assert computed_in == [expected]
