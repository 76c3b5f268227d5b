"""
The bytes of a container daemon's logs API to stamped lines, stdout and stderr in the order the daemon has them.

Without a terminal each message is a frame: one byte for the stream, three zeros, four bytes for its size, big-endian
(Docker Engine API 1.24 to 1.51, ``ContainerAttach``). With a terminal the bytes come as they are. Which of the two it
is shows in the first bytes, as with ``timestamps=1`` a message begins with a digit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from budget_exporter.errors import SourceError

__all__ = ["Frames", "Said"]

_HEADER = 8
_STREAMS = {0: "stdin", 1: "stdout", 2: "stderr", 3: "daemon"}
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")
_LONGEST_STAMP = 36
_FULL = 8192
"""Bytes from which on a message without an end is taken for a full buffer, whose rest may have a later stamp."""


class Said(NamedTuple):
    """One line of a container; ``stamp`` as the daemon printed it, ``data`` without the line's end, if it has one."""

    stamp: bytes
    data: bytes
    stream: str = ""
    cut: bool = False
    ended: bool = True


class Frames:
    """
    Cut a stream into lines; ``limit`` are the bytes of a line that are kept.

    docker passes a line above 16 KiB on in parts, all with the stamp of the first; podman what one read of conmon's
    brought, 8 KiB at most. Both leave the end of a line away that a process never ended: it ends where something else
    follows.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._framed: bool | None = None
        self._rest = bytearray()
        self._skip = 0
        """Bytes of a message above the limit that have not come yet."""
        self._begun: Said | None = None

    def feed(self, chunk: bytes) -> list[Said]:
        """Return the lines that are whole now; raise SourceError where the daemon tells an error of its own."""
        self._rest += chunk
        if self._framed is None:
            if len(self._rest) < 4:  # noqa: PLR2004 - the stream's number and three zeros
                return []
            self._framed = self._rest[0] in _STREAMS and not any(self._rest[1:4])
        return self._messages() if self._framed else self._raw_lines()

    def finish(self) -> list[Said]:
        """Return the line that was never ended, as the process that wrote it is gone."""
        if self._framed is False and _STAMP.match(self._rest):
            rest = bytes(self._rest)
            self._rest.clear()
            return [said._replace(ended=False) for said in self._raw_line(rest)]
        begun, self._begun = self._begun, None
        return [begun] if begun is not None else []

    def _messages(self) -> list[Said]:
        said: list[Said] = []
        rest, position = self._rest, 0
        room = self._limit + _LONGEST_STAMP
        while True:
            if self._skip:
                passed = min(self._skip, len(rest) - position)
                self._skip -= passed
                position += passed
            if len(rest) - position < _HEADER:
                break
            size = int.from_bytes(rest[position + 4 : position + _HEADER], "big")
            kept = min(size, room)
            if len(rest) - position < _HEADER + kept:
                break
            body = bytes(rest[position + _HEADER : position + _HEADER + kept])
            if size > kept:
                # The end of it is not looked at: what is longer than the limit is a line that has an end.
                body += b"\n"
            said += self._message(_STREAMS.get(rest[position], ""), body, cut=size > kept)
            position += _HEADER + kept
            self._skip = size - kept
        del rest[:position]
        return said

    def _message(self, stream: str, body: bytes, *, cut: bool) -> list[Said]:
        if stream == "daemon":
            raise SourceError(f"the daemon says: {body.decode('utf-8', 'replace').strip()[:200]}")
        match = _STAMP.match(body)
        stamp, data = (body[: match.end() - 1], body[match.end() :]) if match else (b"", body)
        said: list[Said] = []
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.stream == stream and _goes_on(begun, stamp):
                stamp, data, cut = begun.stamp, begun.data + data, cut or begun.cut
            else:
                said.append(begun)
        ended = data.endswith(b"\n")
        data = data.removesuffix(b"\n")
        line = Said(stamp, data[: self._limit], stream, cut or len(data) > self._limit, ended)
        if ended:
            said.append(line)
        else:
            self._begun = line
        return said

    def _raw_lines(self) -> list[Said]:
        end = self._rest.rfind(b"\n") + 1
        if not end:
            self._bound()
            return []
        whole = bytes(self._rest[: end - 1])
        del self._rest[:end]
        return [said for line in whole.split(b"\n") for said in self._raw_line(line)]

    def _raw_line(self, line: bytes) -> list[Said]:
        """Return a terminal's line, parts of it put together and what was never ended taken off its front."""
        line = line.removesuffix(b"\r")
        first = _STAMP.match(line)
        if first is None:
            return [Said(b"", line[: self._limit], "", len(line) > self._limit)] if line else []
        stamps = [match for match in _STAMP.finditer(line) if len(match[0]) == len(first[0])]
        found: list[Said] = []
        for i, match in enumerate(stamps):
            stamp = match[0][:-1]
            data = line[match.end() : stamps[i + 1].start() if i + 1 < len(stamps) else len(line)]
            if found and _goes_on(found[-1], stamp):
                before = found.pop()
                stamp, data = before.stamp, before.data + data
            found.append(Said(stamp, data[: self._limit], "", len(data) > self._limit))
        return found

    def _bound(self) -> None:
        """Keep no more of a terminal's line than will be looked at; its stamp stays in front."""
        if len(self._rest) > 4 * self._limit:
            del self._rest[2 * self._limit : -_LONGEST_STAMP]


def _goes_on(begun: Said, stamp: bytes) -> bool:
    return begun.stamp == stamp or len(begun.data) >= _FULL
