"""``journalctl -o json`` to records: one JSON object a line, whatever its length and order of fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from budget_exporter.evidence import Record

__all__ = ["Entries"]

_LONGEST = 1 << 20
"""Bytes of one entry that are kept: a coloured line is an array of integers, about four bytes a byte."""
_MESSAGE = 1 << 16
"""Bytes of a message that are kept; journald itself cuts lines of a stream at 48 KiB."""
_STREAMS = {"3": "stderr", "6": "stdout"}
"""systemd and the container engines' journald drivers: PRIORITY 3 is stderr, 6 stdout."""


class Entries:
    """Cut a stream into entries; an entry longer than 1 MiB is dropped, so that memory stays bounded."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._dropping = False
        self._parts: dict[str, bytes] = {}
        """By stream: what a container engine has sent of a line above 16 KiB."""

    def feed(self, chunk: bytes) -> list[Record]:
        """Return the records whose end is in ``chunk``."""
        records: list[Record] = []
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._keep(part)
            entry = b"" if self._dropping else bytes(self._rest)
            self._rest.clear()
            self._dropping = False
            record = self._record(entry)
            if record is not None:
                records.append(record)
        self._keep(rest)
        return records

    def _keep(self, part: bytes) -> None:
        if len(self._rest) + len(part) > _LONGEST:
            self._dropping = True
            self._rest.clear()
        if not self._dropping:
            self._rest += part

    def _record(self, entry: bytes) -> Record | None:
        fields = _fields(entry)
        message = _bytes(fields.get("MESSAGE"))
        cursor = fields.get("__CURSOR")
        if message is None or not isinstance(cursor, str):
            return None
        stream = _STREAMS.get(_text(fields.get("PRIORITY")), "")
        if self._parts:
            message = self._parts.pop(stream, b"") + message
        if fields.get("CONTAINER_PARTIAL_MESSAGE") == "true":
            self._parts[stream] = message[:_MESSAGE]
            return None
        message = message.rstrip(b"\n")
        return Record(
            data=message[:_MESSAGE],
            cursor=cursor,
            at=_time(fields),
            pid=_number(fields.get("_PID")),
            stream=stream,
            cut=len(message) > _MESSAGE,
        )


def _fields(entry: bytes) -> Mapping[str, Any]:
    try:
        fields: Any = json.loads(entry)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _bytes(value: Any) -> bytes | None:
    """Return a field's bytes: text, an array of integers (ESC or not UTF-8), or the last of several values."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list) and value:
        if all(isinstance(each, int) and 0 <= each <= 255 for each in value):  # noqa: PLR2004 - a byte
            return bytes(value)
        return _bytes(value[-1])
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None  # noqa: PLR2004 - a PID


def _time(fields: Mapping[str, Any]) -> float | None:
    """Return the Unix time at which the journal took the entry in (microseconds in the field)."""
    text = _text(fields.get("__REALTIME_TIMESTAMP"))
    return int(text) / 1e6 if text.isascii() and text.isdigit() and len(text) < 20 else None  # noqa: PLR2004 - 64 bits
