"""Our own log lines: logfmt or JSON, on standard error."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

__all__ = ["FORMATS", "LEVELS", "set_up"]

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("logfmt", "json")


def _fields(record: logging.LogRecord) -> dict[str, str]:
    fields = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(_fields(record)).decode()


def _quoted(value: str) -> str:
    """Return ``value`` as one word or as a JSON string, so that no value can forge a line or a field."""
    plain = value and not any(c in ' ="\\' or not c.isprintable() for c in value)
    return value if plain else msgspec.json.encode(value).decode()


def set_up(level: str, style: str) -> None:
    """Send log records of ``level`` and above to standard error in ``style``, one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Logfmt())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # A port scanner's bytes are no error of ours: aiohttp logs a traceback for each malformed request.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
