"""
Several engines in one log, taken apart by what stands before their lines.

The names of compose services, pods, units (of syslog or the journal) or stages tell whose a line is. Where nothing does
and two servers take turns, their processes are taken apart: which of them belong together is not known then, and
figures of two engines must never become one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from budget_exporter.evidence import Record

__all__ = ["apart"]

_COLOUR = rb"(?:\x1b\[[\d;]*m){0,4}"
_STAMP = rb"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z|[+-]\d\d:?\d\d)?\]?:? {1,2})?"
_KINDS = (
    # kubectl logs --prefix
    (re.compile(_COLOUR + rb"\[pod/([^\]\s]{1,255})\]"), 0.9),
    # docker compose logs
    (re.compile(_COLOUR + rb"([\w.-]{1,80}) *" + _COLOUR + rb" *\|" + _COLOUR + rb" "), 0.9),
    # syslog, journalctl -o short and its relatives: the host and the unit or program
    (
        re.compile(rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d[.\d]{0,10} ([\w.-]{1,255} [^\s:\[]{1,255})(?:\[\d+\])?: "),
        0.9,
    ),
    (re.compile(_STAMP + rb"([\w.-]{1,255} [\w@.\\-]{1,255})\[\d{1,10}\]: "), 0.9),
    # several engines under one server (vllm-omni); its own lines have no such name
    (re.compile(_STAMP + _COLOUR + rb"(\[Stage-\d{1,4}\])"), 0.0),
)
"""What names whose a line is, and the part of all lines that has to have such a name."""
_MAIN = re.compile(rb"\((?:APIServer|MainProcess) pid=(\d{1,10})\)")
_PROCESS = re.compile(rb"[(\[][A-Za-z][\w. -]{0,80} pid=(\d{1,10})[^)\]]{0,80}[)\]]")


def apart(records: Iterable[Record]) -> list[list[Record]]:
    """
    Return the records of a whole log by engine, in the order of their first lines; one list where it is one's.

    Records keep their number and their lines, of which those of the others are empty: line numbers stay what they were.
    """
    whole = list(records)
    lines = [line for record in whole for line in record.data.split(b"\n")]
    owners = _by_name(lines) or _by_process(lines)
    names = list(dict.fromkeys(owner for owner, line in zip(owners, lines, strict=False) if line.strip()))
    if len(names) < 2:  # noqa: PLR2004 - nothing to take apart
        return [whole]
    return [_only(name, whole, owners) for name in names]


def _by_name(lines: Sequence[bytes]) -> list[bytes]:
    """Return whose each line is, nothing where no kind of name tells of at least two."""
    full = sum(bool(line.strip()) for line in lines)
    for kind, share in _KINDS:
        owners = [match[1] if (match := kind.match(line)) else b"" for line in lines]
        named = sum(map(bool, owners))
        if named and named >= share * full and len(set(owners) - {b""}) > 1:
            return owners
    return []


def _by_process(lines: Sequence[bytes]) -> list[bytes]:
    """Return which process each line is of, where two servers take turns; else nothing."""
    mains = [match[1] for line in lines if (match := _MAIN.search(line, 0, 400))]
    turns = [main for main, before in zip(mains, [b"", *mains], strict=False) if main != before]
    if len(turns) == len(set(turns)):
        return []
    owners, owner = [], b""
    for line in lines:
        found = _PROCESS.search(line, 0, 400)
        # A line without a process goes on with what the one before it said.
        owner = found[1] if found else owner
        owners.append(owner)
    return owners


def _only(name: bytes, records: Sequence[Record], owners: Sequence[bytes]) -> list[Record]:
    kept, at = [], 0
    for record in records:
        lines = record.data.split(b"\n")
        own = [line if owner == name else b"" for line, owner in zip(lines, owners[at:], strict=False)]
        at += len(lines)
        kept.append(replace(record, data=b"\n".join(own)))
    return kept
