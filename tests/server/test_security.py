"""Tokens, certificates and their renewal, each by itself, before a plain gRPC server and the metrics port."""

from __future__ import annotations

import logging
import queue
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from dnnclient.channels import bearer, tls_credentials
from dnnserve.config import ServerConfig
from dnnserve.errors import ForbiddenError, StartError, UnauthenticatedError
from dnnserve.front.authorization import AuthorizingInterceptor, objection_of
from dnnserve.security.authorizer import Authorizer, Grant, Group, group_of, parse_tokens
from dnnserve.security.doors import Doors, open_doors
from dnnserve.security.reloading import Reloading
from dnnserve.security.tls import Certificates, grpc_credentials, reloading_context
from dnnserve.web import WebServer

from dnncore.errors import BadParamError, ConfigError
from tests.server.certificates import Authority

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
APP, OPERATOR = "application-0123456789", "operator-0123456789ab"
TOKENS = parse_tokens(f"""
# who     what
infer,metadata {APP}   # the application
infer,metadata,admin  {OPERATOR}
health *
""")
PATIENCE_S = 30


@pytest.mark.parametrize(
    ("method", "group"),
    [
        (INFER, "infer"),
        ("/inference.GRPCInferenceService/ModelStreamInfer", "infer"),
        ("/dnnapi.v1.ClassifierService/Classify", "infer"),
        (LIVE, "health"),
        ("/grpc.health.v1.Health/Watch", "health"),
        ("/dnnapi.v1.ClassifierService/GetModel", "metadata"),
        ("/inference.GRPCInferenceService/ModelStatistics", "metadata"),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "metadata"),
        (LOAD, "admin"),
        ("/inference.GRPCInferenceService/SystemSharedMemoryRegister", "admin"),
        ("/other.Service/ModelInfer", "admin"),
        ("ModelInfer", "admin"),
        ("", "admin"),
    ],
)
def test_methods_have_groups_and_the_unknown_is_for_administrators(method: str, group: str) -> None:
    assert group_of(method) is Group(group)


@pytest.mark.parametrize(
    ("method", "metadata", "refusal"),
    [
        (INFER, [("authorization", f"Bearer {APP}")], None),
        (INFER, [("x", "y"), ("authorization", f"bEARER {APP} ".encode())], None),
        (LOAD, [("authorization", f"Bearer {OPERATOR}")], None),
        (LIVE, [], None),
        (LIVE, [("authorization", "Bearer wrong")], None),
        (LOAD, [("authorization", f"Bearer {APP}")], ForbiddenError),
        (INFER, [], UnauthenticatedError),
        (INFER, [("authorization", "Bearer wrong")], UnauthenticatedError),
        (INFER, [("authorization", f"Bearer {APP}x")], UnauthenticatedError),
        (INFER, [("authorization", f"Bearer {APP[:-1]}")], UnauthenticatedError),
        (INFER, [("authorization", APP)], UnauthenticatedError),
        (INFER, [("authorization", f"Basic {APP}")], UnauthenticatedError),
        (INFER, [("authorization", "Bearer ")], UnauthenticatedError),
        (INFER, [("authorization", b"\xff\xfe")], UnauthenticatedError),
        (INFER, [("authorization", f"Bearer {APP}")] * 2, UnauthenticatedError),
        ("/x", [], UnauthenticatedError),
    ],
)
def test_a_call_passes_with_a_token_for_its_group_and_where_none_is_needed(
    method: str, metadata: list[tuple[str, str | bytes]], refusal: type[Exception] | None
) -> None:
    if refusal is None:
        TOKENS.check(method, metadata)
    else:
        with pytest.raises(refusal) as caught:
            TOKENS.check(method, metadata)
        assert APP[:8] not in str(caught.value)


def test_an_authorizer_holds_no_token() -> None:
    assert APP not in repr(TOKENS)
    with pytest.raises(UnauthenticatedError):
        Authorizer((Grant.of(None, [Group.HEALTH]),)).check(INFER, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no token"),
        ("# all of it is a comment", "there is no token"),
        (f"infer {APP}\nwrite {APP}", "line 2: 'write' is no group; there are infer, health, metadata, admin"),
        (f"infer, metadata {APP}", "line 1 has 3 words"),
        (APP, "line 1 has 1 words"),
        ("infer secret", "the token in line 1 is too short"),
    ],
)
def test_a_file_of_tokens_with_something_wrong_is_refused_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_tokens(text)
    assert "secret" not in str(caught.value)


def test_files_are_read_again_when_they_change_and_the_old_value_stays_while_they_are_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now, reads = tmp_path / "value", [0.0], [0]

    def read() -> int:
        reads[0] += 1
        text = path.read_text()
        if text == "bad":
            raise ConfigError("it is bad")
        return len(text)

    path.write_text("a")
    value = Reloading([path], read, period_s=1.0, clock=lambda: now[0])
    assert value.current == 1
    path.write_text("ab")
    assert value.current == 1  # not looked at again yet
    now[0] = 1.0
    assert (value.current, reads[0]) == (2, 2)
    now[0] = 2.0
    assert (value.current, reads[0]) == (2, 2)  # unchanged, not read
    for text in ("bad", None):
        caplog.clear()
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        for _ in range(3):
            now[0] += 1.0
            assert value.current == 2
        assert [record.levelname for record in caplog.records] == ["ERROR"]
    path.write_text("abcd")
    now[0] += 1.0
    with caplog.at_level(logging.INFO):
        assert value.current == 4
    with pytest.raises(OSError, match="none"):
        Reloading([tmp_path / "none"], read)


@contextmanager
def answering(
    credentials: grpc.ServerCredentials | None = None, authorizer: Callable[[], Authorizer] | None = None
) -> Iterator[str]:
    """A gRPC server that answers every unary method with its request."""

    class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    interceptors: list[grpc.ServerInterceptor[Any, Any]] = (
        [] if authorizer is None else [AuthorizingInterceptor(objection_of(authorizer), lambda _: False)]
    )
    server = grpc.server(ThreadPoolExecutor(2), interceptors=interceptors)
    server.add_generic_rpc_handlers((Echo(),))
    address = "127.0.0.1:0"
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def ask(
    target: str, credentials: grpc.ChannelCredentials | None = None, token: str | None = None, method: str = INFER
) -> bytes | grpc.StatusCode:
    channel = (
        grpc.insecure_channel(target)
        if credentials is None
        else grpc.secure_channel(target, credentials, [("grpc.use_local_subchannel_pool", 1)])
    )
    with channel:
        try:
            call = channel.unary_unary(method, None, None)
            return call(b"hello", timeout=PATIENCE_S, metadata=bearer(token))  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            return error.code()


def test_the_interceptor_refuses_by_token_before_a_request_is_read() -> None:
    sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with answering(authorizer=lambda: TOKENS) as target:
        assert ask(target, token=APP) == b"hello"
        assert ask(target) is grpc.StatusCode.UNAUTHENTICATED
        assert ask(target, token=APP, method=LOAD) is grpc.StatusCode.PERMISSION_DENIED
        assert ask(target, method=LIVE) == b"hello"
        with grpc.insecure_channel(target) as channel:  # a stream that never sends anything
            call = channel.stream_stream(INFER, None, None)(iter(sent.get, None), timeout=PATIENCE_S)
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED
            sent.put(None)


def test_tls_is_spoken_with_the_authoritys_friends_alone(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "others")
    with answering(grpc_credentials(ours.issue("server"))) as target:
        assert ask(target, tls_credentials(ours.path)) == b"hello"
        assert ask(target, tls_credentials(theirs.path)) is grpc.StatusCode.UNAVAILABLE
        assert ask(target) is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_asks_clients_for_certificates(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "others")
    friend, stranger = ours.issue("friend"), theirs.issue("stranger")
    with answering(grpc_credentials(replace(ours.issue("server"), client_ca=ours.path))) as target:
        assert ask(target, tls_credentials(ours.path, friend.chain, friend.key)) == b"hello"
        assert ask(target, tls_credentials(ours.path, stranger.chain, stranger.key)) is grpc.StatusCode.UNAVAILABLE
        assert ask(target, tls_credentials(ours.path)) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(BadParamError, match="come together"):
        tls_credentials(ours.path, friend.chain)


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reloading.__init__, "__defaults__", (0.0, *(Reloading.__init__.__defaults__ or ())[1:]))
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    with answering(grpc_credentials(old.issue("server"))) as target:
        assert ask(target, tls_credentials(old.path)) == b"hello"
        new.issue("server")
        assert ask(target, tls_credentials(new.path)) == b"hello"
        assert ask(target, tls_credentials(old.path)) is grpc.StatusCode.UNAVAILABLE
        (tmp_path / "server.pem").write_text("half a fi")
        assert ask(target, tls_credentials(new.path)) == b"hello"


@pytest.mark.parametrize("part", ["chain", "key", "client_ca"])
def test_files_that_are_no_certificates_are_refused_at_the_start(tmp_path: Path, part: str) -> None:
    ours = Authority(tmp_path)
    good, other = replace(ours.issue("server"), client_ca=ours.path), ours.issue("other")
    bad = {"chain": other.chain, "key": other.key, "client_ca": good.key}[part]
    with pytest.raises(ConfigError, match="cannot be used for TLS"):
        grpc_credentials(replace(good, **{part: bad}))
    with pytest.raises(OSError, match="nowhere"):
        grpc_credentials(replace(good, **{part: tmp_path / "nowhere"}))


def get(url: str, ca: Path, own: Certificates | None = None) -> int:
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(own.chain, own.key)
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_metrics_port_speaks_tls_and_keeps_metrics_for_clients_with_certificates(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    certificates, friend = ours.issue("server"), ours.issue("friend")
    for client_ca, without_own in ((None, 200), (ours.path, 403)):
        context = reloading_context(replace(certificates, client_ca=client_ca))
        web = WebServer("127.0.0.1", 0, lambda: b"up 1\n", lambda: True, lambda context=context: context.current)  # type: ignore[misc]
        web.start()
        try:
            url = f"https://127.0.0.1:{web.port}"
            assert get(f"{url}/metrics", ours.path, friend) == 200
            assert get(f"{url}/metrics", ours.path) == without_own
            assert get(f"{url}/readyz", ours.path) == 200
            with pytest.raises(OSError, match=r"[Rr]emote|reset|closed|[Ee]mpty"):
                urllib.request.urlopen(url.replace("https", "http"), timeout=PATIENCE_S)
        finally:
            web.close()


def test_files_named_by_the_configuration_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    def refusal(**settings: Path) -> str:
        with pytest.raises(StartError) as caught:
            open_doors(ServerConfig(model=Path("m"), **settings))  # type: ignore[arg-type]
        return str(caught.value)

    tokens = tmp_path / "tokens"
    tokens.write_text("infer short")
    assert f"token file {tokens}: the token in line 1 is too short" in refusal(token_file=tokens)
    assert "nowhere" in refusal(token_file=tmp_path / "nowhere")
    assert f"{tokens}, {tokens} cannot be used for TLS" in refusal(tls_cert=tokens, tls_key=tokens)
    assert open_doors(ServerConfig(model=Path("m"))) == Doors(None, None, None, None)


@pytest.mark.parametrize(
    "settings",
    [{"tls_cert": Path("c")}, {"tls_key": Path("k")}, {"tls_client_ca": Path("c")}, {"metrics_tls": True}],
    ids=str,
)
def test_settings_of_tls_that_lack_their_counterpart_are_refused(settings: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key"):
        ServerConfig(model=Path("m"), **settings)  # type: ignore[arg-type]
