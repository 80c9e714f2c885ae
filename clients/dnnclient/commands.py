"""What the commands of `dnnclient` do once the command line is read."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from dnnclient.arrivals import ClosedLoop, OpenLoop
from dnnclient.channels import tls_credentials
from dnnclient.client import Client
from dnnclient.errors import ClientError
from dnnclient.images import image_files, synthetic_images
from dnnclient.loadgen import run_load
from dnnclient.report import Progress
from dnnclient.results import Classification
from dnnclient.retries import RetryPolicy
from dnncore.errors import BadParamError, DnncoreError

__all__ = ["run"]

_REQUESTS_AT_A_TIME = 8  # enough for the server to batch the images of one `classify`
_SYNTHETIC_IMAGES = 64  # distinct, and sent over and over


def run(options: argparse.Namespace) -> int:
    """Run the command that the options name; return the exit status."""
    try:
        return _load(options) if options.command == "load" else _classify(options)
    except (DnncoreError, OSError) as error:
        _complain(error)
        return 2 if isinstance(error, BadParamError) else 1
    except KeyboardInterrupt:
        return 130


def _classify(options: argparse.Namespace) -> int:
    retry = RetryPolicy(max_attempts=1 + options.retries) if options.retries else None
    with (
        Client(
            options.server,
            model=options.model,
            timeout_s=options.timeout,
            retry=retry,
            priority=options.priority,
            **_security(options),
        ) as client,
        ThreadPoolExecutor(_REQUESTS_AT_A_TIME) as pool,
    ):
        ask = partial(_classify_one, client, version=options.model_version, top_k=options.top_k)
        outcomes = list(zip(options.images, pool.map(ask, options.images), strict=True))
    if options.json:
        print(json.dumps([_as_json(path, outcome) for path, outcome in outcomes], indent=2))
    for path, outcome in outcomes:
        if isinstance(outcome, Exception):
            _complain(outcome, path)
        elif not options.json:
            print(f"{path}: " + ", ".join(f"{p.label or p.index} {p.probability:.4f}" for p in outcome.predictions))
    return 1 if any(isinstance(outcome, Exception) for _, outcome in outcomes) else 0


def _classify_one(client: Client, path: Path, *, version: str, top_k: int) -> Classification | ClientError | OSError:
    try:
        return client.classify(path, version=version, top_k=top_k)[0]
    except (ClientError, OSError) as error:
        return error  # one image's failure; the others are classified


def _as_json(path: Path, outcome: Classification | ClientError | OSError) -> dict[str, object]:
    if isinstance(outcome, Exception):
        return {"image": str(path), "error": {"code": _code(outcome), "message": str(outcome)}}
    predictions = [{"index": p.index, "label": p.label, "probability": p.probability} for p in outcome.predictions]
    return {"image": str(path), "predictions": predictions}


def _load(options: argparse.Namespace) -> int:
    if options.poisson and options.rate is None:
        raise BadParamError("--poisson needs --rate: without a rate, answers set the pace")
    files = image_files(options.images or [])
    security = _security(options)
    with Client(options.server, model=options.model, **security) as client:
        info = client.model(version=options.model_version)
    report = run_load(
        options.server,
        files or synthetic_images(info.input_shape, _SYNTHETIC_IMAGES, options.seed),
        model=options.model,
        version=options.model_version,
        arrivals=ClosedLoop(options.concurrency)
        if options.rate is None
        else OpenLoop(options.rate, options.poisson, options.seed),
        requests=options.requests,
        duration_s=None if options.requests else options.duration,
        images_per_request=options.images_per_request,
        deadline_s=[deadline_ms / 1e3 for deadline_ms in options.deadline_ms],
        warmup_s=options.warmup,
        channels=options.channels,
        priority=options.priority,
        on_progress=_show if options.progress else None,
        **security,
    )
    text = json.dumps({"model": info.name, "version": info.version, **report.to_dict()}, indent=2)
    if options.json == "-":
        print(text)
    else:
        print(f"model     {info.name}/{info.version}\n{report}")
        if options.json:
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if report.num_failed else 0


def _security(options: argparse.Namespace) -> dict[str, Any]:
    """Credentials and token, as clients take them."""
    if options.tls_ca is None and (options.tls_cert or options.tls_key):
        raise BadParamError("--tls-cert and --tls-key need --tls-ca, which says for which servers they are meant")
    credentials = tls_credentials(options.tls_ca, options.tls_cert, options.tls_key) if options.tls_ca else None
    token = options.token_file.read_text(encoding="utf-8").strip() if options.token_file else None
    return {"credentials": credentials, "token": token}


def _show(progress: Progress) -> None:
    print(progress, file=sys.stderr, flush=True)


def _code(error: Exception) -> str:
    return error.code.name if isinstance(error, ClientError) else type(error).__name__


def _complain(error: Exception, path: Path | None = None) -> None:
    where = f"{path}: " if path is not None else ""
    print(f"dnnclient: {where}{_code(error)}: {error}", file=sys.stderr)
