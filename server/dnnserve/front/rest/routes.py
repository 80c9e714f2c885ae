"""Paths of the protocol over HTTP, and the method of the gRPC service that each stands for."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from dnnserve.catalog import shorten
from dnnserve.http.connection import Refusal

__all__ = ["POSTED", "Route", "find_route"]

_OF_A_MODEL = {
    (): "ModelMetadata",
    ("ready",): "ModelReady",
    ("config",): "ModelConfig",
    ("stats",): "ModelStatistics",
    ("infer",): "ModelInfer",
}
_OF_THE_SERVER = {
    (): "ServerMetadata",
    ("health", "live"): "ServerLive",
    ("health", "ready"): "ServerReady",
    ("models", "stats"): "ModelStatistics",
    ("repository", "index"): "RepositoryIndex",
}
_OF_THE_REPOSITORY = {"load": "RepositoryModelLoad", "unload": "RepositoryModelUnload"}
_SHARED_MEMORY = {"systemsharedmemory": "SystemSharedMemory", "cudasharedmemory": "CudaSharedMemory"}
_OF_SHARED_MEMORY = {"status": "Status", "register": "Register", "unregister": "Unregister"}
POSTED = frozenset(
    {
        *("ModelInfer", "RepositoryIndex", *_OF_THE_REPOSITORY.values()),
        *(f"{kind}{act}" for kind in _SHARED_MEMORY.values() for act in ("Register", "Unregister")),
    }
)
"""Methods whose requests have bodies."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a request is for. Immutable.

    Args:
        method: Of `inference.GRPCInferenceService`.
        model: Its name, or that of a region of shared memory; empty: the server, or all of them.
        version: Empty: the latest.
    """

    method: str
    model: str = ""
    version: str = ""


def find_route(verb: str, target: str) -> Route:
    """Read a request's first line.

    Raises:
        Refusal: there is no such path, or it is asked for by another verb.
    """
    path = target.partition("?")[0]
    root, *parts = [unquote(part) for part in path.strip("/").split("/")]
    route = _route(parts) if root == "v2" else None
    if route is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"there is no {shorten(path)}; there are /v2 and what stands below it")
    allowed = ("POST",) if route.method in POSTED else ("GET", "HEAD")
    if verb not in allowed:
        text = f"{shorten(path)} is asked for by {allowed[0]}, not by {shorten(verb)}"
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, text, (("Allow", ", ".join(allowed)),))
    return route


def _route(parts: list[str]) -> Route | None:
    method = _OF_THE_SERVER.get(tuple(parts))
    if method is not None:
        return Route(method)
    match parts:
        case ["repository", "models", model, act] if model and act in _OF_THE_REPOSITORY:
            return Route(_OF_THE_REPOSITORY[act], model)
        case [kind, *rest] if kind in _SHARED_MEMORY:
            return _shared_memory_route(_SHARED_MEMORY[kind], rest)
        case ["models", model, "versions", version, *rest] if model and version:
            pass
        case ["models", model, *rest] if model:
            version = ""
        case _:
            return None
    method = _OF_A_MODEL.get(tuple(rest))
    return None if method is None else Route(method, model, version)


def _shared_memory_route(kind: str, parts: list[str]) -> Route | None:
    match parts:
        case ["region", name, act] if name and act in _OF_SHARED_MEMORY:
            return Route(f"{kind}{_OF_SHARED_MEMORY[act]}", name)
        case [("status" | "unregister") as act]:
            return Route(f"{kind}{_OF_SHARED_MEMORY[act]}")
    return None
