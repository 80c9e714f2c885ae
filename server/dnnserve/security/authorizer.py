"""Bearer tokens by group of methods: an `Authorizer` says of a method and a call's metadata whether the call may pass.

It knows nothing of gRPC: a method is its path on the wire, metadata are pairs of a key and a value. Whoever takes calls asks it
before anything of a request is looked at.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dnncore.errors import ConfigError
from dnnserve.errors import ForbiddenError, UnauthenticatedError

__all__ = ["Authorizer", "Grant", "Group", "group_of", "parse_tokens"]

_SCHEME = "bearer "
_MIN_TOKEN_LENGTH = 16
_ANYBODY = "*"


class Group(Enum):
    """Methods that are granted together."""

    INFER = "infer"
    HEALTH = "health"
    METADATA = "metadata"
    ADMIN = "admin"


_INFERENCE, _CLASSIFIER = "/inference.GRPCInferenceService/", "/dnnapi.v1.ClassifierService/"
_GROUPS = {
    **dict.fromkeys(
        (f"{_INFERENCE}ModelInfer", f"{_INFERENCE}ModelStreamInfer", f"{_CLASSIFIER}Classify"), Group.INFER
    ),
    **dict.fromkeys((f"{_INFERENCE}{name}" for name in ("ServerLive", "ServerReady", "ModelReady")), Group.HEALTH),
    **dict.fromkeys(
        (
            f"{_CLASSIFIER}GetModel",
            *(f"{_INFERENCE}{name}" for name in ("ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics")),
            *(
                f"{_INFERENCE}{name}"
                for name in ("RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus")
            ),
        ),
        Group.METADATA,
    ),
}
_GROUPS_OF_SERVICES = {
    "/grpc.health.v1.Health/": Group.HEALTH,
    "/grpc.reflection.v1alpha.ServerReflection/": Group.METADATA,
    "/grpc.reflection.v1.ServerReflection/": Group.METADATA,
}


def group_of(method: str) -> Group:
    """The group of a method, "/package.Service/Method". What is not known here is for administrators alone."""
    service = method[: method.rfind("/") + 1]
    return _GROUPS.get(method) or _GROUPS_OF_SERVICES.get(service, Group.ADMIN)


@dataclass(frozen=True, slots=True)
class Grant:
    """The groups that a token opens. Immutable; it holds no token, but what a token is recognised by.

    Args:
        digest: SHA-256 of the token; None: for anybody, with a token or without.
        groups: What it opens.
    """

    digest: bytes | None
    groups: frozenset[Group]

    @classmethod
    def of(cls, token: str | None, groups: Iterable[Group]) -> Grant:
        """The grant to whoever shows a token; None: to anybody."""
        return cls(None if token is None else _digest(token), frozenset(groups))


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Judges calls by the tokens that they show. Immutable.

    Args:
        grants: All that is granted. What is granted to nobody is refused to everybody.
    """

    grants: tuple[Grant, ...]

    def check(self, method: str, metadata: Iterable[Sequence[str | bytes]]) -> None:
        """Let a call pass.

        It takes the same time whichever token is shown: all grants are compared, by digests, in constant time each.

        Args:
            method: Its path.
            metadata: What the client sent with it: pairs of a key in lower case and a value.

        Raises:
            UnauthenticatedError: the method needs a token, and none is shown, or one that is not known.
            ForbiddenError: the token does not open the method's group.
        """
        group = group_of(method)
        shown = [value for key, value in metadata if key == "authorization"]
        digest = _digest(_token(shown[0])) if len(shown) == 1 else None
        open_to_all, known, granted = False, False, False
        for grant in self.grants:
            if grant.digest is None:
                open_to_all |= group in grant.groups
            else:
                fits = digest is not None and hmac.compare_digest(grant.digest, digest)
                known |= fits
                granted |= fits and group in grant.groups
        if open_to_all or granted:
            return
        if not known:
            reason = "is not known" if len(shown) == 1 else "is missing" if not shown else "is there more than once"
            raise UnauthenticatedError(f"a bearer token in the metadata 'authorization' is needed; it {reason}")
        raise ForbiddenError(f"this token does not open {group.value}, to which {method} belongs")


def parse_tokens(text: str) -> Authorizer:
    """Read a file of tokens: a line has groups, separated by commas, and a token, or * for anybody; # begins a comment.

    Raises:
        ConfigError: a line is something else, or its token is short enough to be guessed. The message does not show the token.
    """
    grants = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(
                f"line {number} has {len(words)} words; write groups and a token, as in: infer,metadata TOKEN"
            )
        names, token = words
        groups = [_group(number, name) for name in names.split(",")]
        if token != _ANYBODY and (len(token) < _MIN_TOKEN_LENGTH or not token.isascii()):
            raise ConfigError(
                f"the token in line {number} is too short, or not ASCII; use {_MIN_TOKEN_LENGTH} characters or more, "
                "as `openssl rand -hex 32` makes them"
            )
        grants.append(Grant.of(None if token == _ANYBODY else token, groups))
    if not grants:
        raise ConfigError("there is no token, so that nobody could call; write groups and a token in each line")
    return Authorizer(tuple(grants))


def _group(number: int, name: str) -> Group:
    try:
        return Group(name)
    except ValueError:
        names = ", ".join(group.value for group in Group)
        raise ConfigError(f"line {number}: {name!r} is no group; there are {names}") from None


def _token(value: str | bytes) -> str:
    """The token in a header; empty for another scheme."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return text[len(_SCHEME) :].strip() if text[: len(_SCHEME)].lower() == _SCHEME else ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
