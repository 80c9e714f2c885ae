"""Log lines on stderr, as text or as one JSON object a line. What clients sent is escaped: a request cannot forge a line."""

from __future__ import annotations

import json
import logging
import os
import sys

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging", "set_log_level"]


class TextFormatter(logging.Formatter):
    """Time, level, logger, message; a traceback follows on its own lines. Thread-safe."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """One line, whatever the message holds."""
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, traceback and a record's own `fields` included. Thread-safe."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logging(log_format: str, log_level: str = "info") -> None:
    """Send everything from a level up to stderr, before gRPC is used for the first time.

    gRPC's core has lines of its own, such as that a client has left in haste; among objects of JSON there are none, unless the
    environment asks for them by GRPC_VERBOSITY.
    """
    is_json = log_format == "json"
    if is_json:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)


def set_log_level(log_level: str) -> None:
    """Log from this level up."""
    logging.getLogger().setLevel(log_level.upper())
