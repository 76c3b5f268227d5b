"""
Lines that a container runtime wrote in parts, put together; all others pass as they are, whole blocks at a time.

Two forms of files: CRI's ``STAMP STREAM P|F TEXT`` (containerd and CRI-O below ``/var/log/pods``, podman's k8s-file),
whose last part has an F, and docker's json-file, whose last part ends in an escaped newline. A record without an
envelope of these is not touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from budget_exporter.evidence import Record

__all__ = ["Partials"]

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT\S{8,28} (stdout|stderr) )([PF])(?::\S{0,40})? (.*)", re.DOTALL)
_CRI_PART = (b" stdout P", b" stderr P")
_STREAM = b'","stream":"'
_ENDED = b'\\n","stream":"'
_ENDS = re.compile(rb"[\r\n]+")


class Partials:
    """Join the parts of each stream's lines; ``limit`` are the bytes of a line that are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun: dict[bytes, tuple[bytes, bytes]] = {}
        """By stream: what stands before the text, and the text so far."""

    def join(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with whole lines only; what is not whole yet comes with its last part."""
        joined = []
        for record in records:
            one = self._joined(record) if self._begun or _in_parts(record.data) else record
            # A record of parts only is kept for its cursor: a log must not seem to stand still.
            joined.append(one)
        return joined

    def _joined(self, record: Record) -> Record:
        lines = [whole for line in _ENDS.split(record.data) if (whole := self._line(line))]
        return replace(record, data=b"\n".join(lines))

    def _line(self, line: bytes) -> bytes:
        cri = _CRI.fullmatch(line)
        if cri is not None:
            return self._part(cri[2], cri[1] + b"F ", cri[4], last=cri[3] == b"F")
        entry = _entry(line) if line.startswith(b"{") else None
        if entry is None:
            return line
        head, stream, text = entry
        return self._part(stream, head, text, last=text.endswith(b"\n"))

    def _part(self, stream: bytes, head: bytes, text: bytes, *, last: bool) -> bytes:
        head, before = self._begun.pop(stream, (head, b""))
        text = (before + text)[: self._limit]
        if last:
            return head + text.rstrip(b"\r\n").replace(b"\n", b" ")
        self._begun[stream] = (head, text)
        return b""


def _in_parts(block: bytes) -> bool:
    """Return whether a block may hold a part of a line; costs a search or two."""
    if block.startswith(b"{"):
        return block.count(_STREAM) != block.count(_ENDED)
    return any(part in block for part in _CRI_PART)


def _entry(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the stamp as a prefix, the stream and the text of a json-file's line, None for any other JSON."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    text, stream, stamp = entry.get("log"), entry.get("stream"), entry.get("time")
    if not isinstance(text, str) or not isinstance(stream, str) or not isinstance(stamp, str):
        return None
    return f"{stamp} ".encode(), stream.encode(), text.encode("utf-8", "surrogatepass")
