"""The committed stubs are current, and our inference protocol is a subset of the one that tritonclient speaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_PROTOS = Path(__file__).resolve().parents[2] / "protos"

# Each side runs in a process of its own: both define package "inference", and protobuf knows one of them a process.
_DESCRIBE = """
import importlib, json, sys

def shape(field):
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return [field.name, field.type, bool(field.is_repeated), kind and kind.full_name, oneof and oneof.name]

def describe(message, into):
    into["messages"][message.full_name] = {str(field.number): shape(field) for field in message.fields}
    for enum in message.enum_types:
        into["enums"][enum.full_name] = {value.name: value.number for value in enum.values}
    for nested in message.nested_types:
        describe(nested, into)

facts = {"messages": {}, "enums": {}, "rpcs": {}}
for name in sys.argv[1:]:
    file = importlib.import_module(name).DESCRIPTOR
    for message in file.message_types_by_name.values():
        describe(message, facts)
    for enum in file.enum_types_by_name.values():
        facts["enums"][enum.full_name] = {value.name: value.number for value in enum.values}
    for service in file.services_by_name.values():
        for rpc in service.methods:
            types = [rpc.input_type.full_name, rpc.output_type.full_name]
            facts["rpcs"][rpc.full_name] = [*types, rpc.client_streaming, rpc.server_streaming]
print(json.dumps(facts))
"""


def _facts(*modules: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_PROTOS), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE, *modules], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return _facts("dnnapi.inference.grpc_service_pb2")


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return _facts("tritonclient.grpc.service_pb2", "tritonclient.grpc.model_config_pb2")


def _differences(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{owner} {key}: {value}, tritonclient has {theirs.get(owner, {}).get(key)}"
        for owner, members in ours.items()
        for key, value in members.items()
        if owner not in theirs or key not in theirs[owner] or theirs[owner][key] != value
    ]


def test_every_message_and_field_is_one_of_tritonclients(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["messages"]) > 30
    assert ours["messages"].keys() <= theirs["messages"].keys()
    assert _differences(ours["messages"], theirs["messages"]) == []


def test_every_enum_value_is_one_of_tritonclients(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert {"inference.DataType", "inference.ModelInput.Format"} <= ours["enums"].keys()
    assert _differences(ours["enums"], theirs["enums"]) == []


def test_every_rpc_is_one_of_tritonclients(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    service = "inference.GRPCInferenceService."
    calls = (
        "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer ModelStreamInfer ModelConfig "
        "ModelStatistics RepositoryIndex RepositoryModelLoad RepositoryModelUnload "
        + " ".join(
            f"{kind}SharedMemory{act}" for kind in ("System", "Cuda") for act in ("Status", "Register", "Unregister")
        )
    )
    assert ours["rpcs"].keys() == {service + call for call in calls.split()}
    assert _differences({"rpc": ours["rpcs"]}, {"rpc": theirs["rpcs"]}) == []


def test_a_field_with_another_number_type_or_name_would_be_reported(theirs: dict[str, Any]) -> None:
    fields = theirs["messages"]["inference.ModelInferRequest"]
    wrong = {"8": fields["7"], "1": ["model_name", 12, False, None, None], "2": ["version", *fields["2"][1:]]}
    assert len(_differences({"inference.ModelInferRequest": wrong}, theirs["messages"])) == 3


def test_committed_stubs_are_what_the_sources_make() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is in the extra [dev]")
    done = subprocess.run(
        [sys.executable, str(_PROTOS / "generate.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
