"""A whole server with TLS and tokens, on either front end, asked by dnnclient."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from dnnclient import Client, ClientError, tls_credentials
from dnnclient.channels import bearer, open_channel
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.server.certificates import Authority
from tests.server.fakes import PATIENCE_S, Lab, make_rows, wait_until
from tests.server.serving import infer_request, serving

HEALTHCHECK = Path(__file__).parents[2] / "deploy/healthcheck.py"
PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
APP, OPERATOR = "application-0123456789", "operator-0123456789ab"
UNAUTHENTICATED, FORBIDDEN = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"infer {APP}\ninfer,metadata {OPERATOR}\nhealth *\n")
    return path


def outcome(target: str, token: str | None, credentials: grpc.ChannelCredentials | None = None) -> list[object]:
    """What inference and metadata end with."""
    with Client(target, model="toy", token=token, credentials=credentials, retry=None, timeout_s=PATIENCE_S) as client:
        ends: list[object] = []
        for ask in (lambda: client.infer({"data": make_rows(1.0, 1)}), client.model):
            try:
                ask()
            except ClientError as error:
                ends.append(error.code)
            else:
                ends.append("OK")
        return ends


@pytest.mark.parametrize("front_end", ["fast", "public"])
def test_tokens_open_their_groups_on_either_front_end_and_streams_are_no_way_around(
    front_end: str, tokens: Path
) -> None:
    with serving(Lab(), front_end=front_end, token_file=tokens) as (server, client):
        target = server.addresses.grpc
        assert outcome(target, None) == [UNAUTHENTICATED, UNAUTHENTICATED]
        assert outcome(target, "x" * 20) == [UNAUTHENTICATED, UNAUTHENTICATED]
        assert outcome(target, APP) == ["OK", FORBIDDEN]
        assert outcome(target, OPERATOR) == ["OK", "OK"]
        with open_channel(target) as channel:
            stub, health = GRPCInferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel)
            assert stub.ServerLive(inference.ServerLiveRequest(), timeout=PATIENCE_S).live
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
            reflection = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", None, None
            )
            assert reflection(iter([b""]), timeout=PATIENCE_S).code() is UNAUTHENTICATED
            assert reflection(iter([b""]), timeout=PATIENCE_S, metadata=bearer(APP)).code() is FORBIDDEN
            made_up = channel.stream_stream("/made.Up/Stream", None, None)
            assert made_up(iter([b""]), timeout=PATIENCE_S).code() is UNAUTHENTICATED
            counted = client.metrics()["dnnserve_requests_total"]
            refused = {labels[2]: count for labels, count in counted.items() if labels[0] == "ServerReflectionInfo"}
            assert refused == {"UNAUTHENTICATED": 1, "PERMISSION_DENIED": 1}
            assert not [labels for labels in counted if labels[0] == "Stream"]
        assert server.statistics.snapshot(server.models[0]).success.count == 2


@pytest.mark.parametrize("front_end", ["fast", "public"])
def test_a_call_is_refused_before_its_request_is_read(front_end: str, tokens: Path) -> None:
    size = 3 << 20  # more than the server takes
    with (
        serving(Lab(), front_end=front_end, token_file=tokens, max_message_mib=1) as (server, _),
        open_channel(server.addresses.grpc) as channel,
    ):
        request = infer_request()
        request.raw_input_contents[0] = bytes(size)
        with pytest.raises(grpc.RpcError) as caught:
            GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=PATIENCE_S)
        assert caught.value.code() is UNAUTHENTICATED


@contextmanager
def secured(tmp_path: Path, tokens: Path, **front: Any) -> Iterator[tuple[Authority, str, str]]:
    ours = Authority(tmp_path)
    certificates = ours.issue("server")
    files: dict[str, Any] = {"tls_cert": certificates.chain, "tls_key": certificates.key, "tls_client_ca": ours.path}
    with serving(Lab(), metrics_tls=True, token_file=tokens, **files, **front) as (server, _):
        yield ours, server.addresses.grpc, server.addresses.metrics


@pytest.mark.parametrize("front", [{"front_end": "fast"}, {"front_end": "public"}, {"front_ends": 2}], ids=str)
def test_mutual_tls_and_tokens_together(front: dict[str, Any], tmp_path: Path, tokens: Path) -> None:
    with secured(tmp_path, tokens, **front) as (ours, target, metrics):
        friend = ours.issue("friend")
        own = tls_credentials(ours.path, friend.chain, friend.key)
        assert outcome(target, APP, own) == ["OK", FORBIDDEN]
        assert outcome(target, APP, tls_credentials(ours.path)) == [grpc.StatusCode.UNAVAILABLE] * 2
        assert outcome(target, APP) == [grpc.StatusCode.UNAVAILABLE] * 2
        context = ssl.create_default_context(cafile=ours.path)
        context.load_cert_chain(friend.chain, friend.key)

        def counted() -> bool:  # processes tell what they have counted in bundles
            with urllib.request.urlopen(metrics, timeout=PATIENCE_S, context=context) as page:
                return b'status="PERMISSION_DENIED"' in page.read()

        wait_until(counted)
        port = str(urlsplit(metrics).port)
        probe = subprocess.run([sys.executable, HEALTHCHECK, port], capture_output=True, text=True, check=False)
        assert (probe.returncode, probe.stdout.splitlines()[-1]) == (0, "ready")


def test_a_client_that_does_not_end_its_handshake_counts_as_a_connection(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    certificates = ours.issue("server")
    files: dict[str, Any] = {"tls_cert": certificates.chain, "tls_key": certificates.key}
    with serving(Lab(), http_port=0, max_connections=2, **files) as (server, _):
        url = urlsplit(f"{server.addresses.http}/v2/health/live")
        assert url.port is not None
        where = "127.0.0.1", url.port

        silent = [socket.create_connection(where, PATIENCE_S) for _ in range(2)]
        with socket.create_connection(where, 3.0) as third:  # less than a handshake may take
            assert third.recv(1) == b"", "it is closed at once"
        for client in silent:
            client.sendall(b"no handshake\r\n\r\n")  # which fails, so that there is room again
            client.close()

        def answered() -> bool:
            context = ssl.create_default_context(cafile=ours.path)
            with suppress(OSError), urllib.request.urlopen(url.geturl(), timeout=PATIENCE_S, context=context) as page:
                return int(page.status) == 200
            return False

        wait_until(answered)


def test_http_has_the_same_certificates_and_tokens_and_renews_them(tmp_path: Path, tokens: Path) -> None:
    ours = Authority(tmp_path)
    certificates, friend = ours.issue("server"), ours.issue("friend")
    files: dict[str, Any] = {"tls_cert": certificates.chain, "tls_key": certificates.key, "tls_client_ca": ours.path}
    stranger = ssl.create_default_context(cafile=ours.path)
    context = ssl.create_default_context(cafile=ours.path)
    context.load_cert_chain(friend.chain, friend.key)
    with serving(Lab(), token_file=tokens, http_port=0, **files) as (server, _):
        url = f"{server.addresses.http}/v2/models/toy/infer"
        host = urlsplit(url).netloc
        body = (
            b'{"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 3, 2, 4], "data": [' + b"1," * 23 + b"1]}]}"
        )

        def ask(token: str, known: ssl.SSLContext = context, body: bytes = body) -> int:
            request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S, context=known) as page:
                    return int(page.status)
            except urllib.error.HTTPError as error:
                return error.code

        def shown() -> bytes:
            connection = http.client.HTTPSConnection(host, timeout=PATIENCE_S, context=context)
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            certificate = connection.sock.getpeercert(binary_form=True)
            connection.close()
            assert certificate is not None
            return certificate

        assert (ask(APP), ask("x" * 20), ask(APP, body=b"junk")) == (200, 401, 400)
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            ask(APP, stranger)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(url.replace("https", "http"), timeout=PATIENCE_S)
        before = shown()
        ours.issue("server")
        wait_until(lambda: shown() != before)
        assert ask(APP) == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_pages_certificate_vouches_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = next(line for line in PAGE.splitlines() if line.startswith("openssl req"))
    subprocess.run(command.split(), check=True, capture_output=True)
    with serving(Lab(), tls_cert=Path("server.pem"), tls_key=Path("server.key")) as (server, _):
        assert outcome(server.addresses.grpc, None, tls_credentials(Path("server.pem"))) == ["OK", "OK"]
