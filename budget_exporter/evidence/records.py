"""
Bytes of a log to lines of an engine: every envelope off.

What is taken off: ANSI colours (also as ``^[[..m``), carriage returns and progress bars glued to the next record, the
time stamps and names of docker, CRI, compose, kubectl, the journal, syslog and CI systems, JSON logs (vLLM's own,
docker's json-file, the journal's, those of log shippers), Ray's note of repetitions, and vLLM's own process prefix of
every version. Where prefixes are nested, the last one is the writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

__all__ = ["Line", "Writer", "lines"]


@dataclass(frozen=True, slots=True)
class Writer:
    """
    Which process wrote a line, as far as its prefix tells.

    ``groups`` are the parts of a worker's name: ``Worker_PP1_TP3`` is PP 1, TP 3. ``rank`` is only set where the prefix
    itself is a global rank (``rank=1``, ``[rank0]:``, ``VllmWorker-1``).
    """

    process: str = ""
    pid: int | None = None
    rank: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """
    One line of an engine without its envelope.

    ``stamp`` is the line's own ``MM-DD HH:MM:SS`` (no year, no zone), ``at`` Unix seconds where an outer stamp with a
    zone told them. ``cut`` says that the end of the text is not known to be the end of what was written, ``number`` is
    that of its physical line where somebody asks for it.
    """

    text: str
    writer: Writer = Writer()
    level: str = ""
    stamp: str = ""
    at: float | None = None
    cut: bool = False
    number: int = 0


_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]|\^\[\[[0-9;]*m")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[\]_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")
"""Cursor movements, titles, Buildkite's stamps: a gap in the text, so that what stood on either side is not joined."""
_ENDS = re.compile(r"[\r\n]+|\^M")
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|\s*\d+/\d+\s*\[[^\]]{0,80}\]")
_PREFIX = re.compile(
    r"[(\[](?P<name>[A-Za-z][\w.]{0,63}(?:[ -]\w{1,16})?)(?: rank=(?P<rank>\d{1,6}))? pid=(?P<pid>\d{1,10})"
    r"(?:, ip=[^)\]]{0,64})?[)\]]"
)
_BARE_PREFIX = re.compile(r"[(\[](?P<name>(?:Worker|EngineCore|APIServer|ApiServer)(?:_[A-Z]{0,4}\d{1,6})+)[)\]]")
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    r"(?:\[[^\]]{1,200}:\d+\]|[\w./-]{1,200}:\d+\]) ?"
)
_NEURON = re.compile(
    r"\s*\d{4}-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d\.\d{1,9}\s+(?P<pid>\d{1,10}):\d{1,10}\s+"
    r"(?P<level>DEBUG|INFO|WARN|ERROR|FATAL)\s+"
)
"""libnrt's own prefix, which it writes past vLLM's: date, process and thread."""
_LEVEL_LOST = re.compile(r"\[[\w/.-]+\.py:\d+\] ")
_GROUP = re.compile(r"(?:_| )(DP|PP|PCP|TP|DCP|EP)(\d{1,6})")
_NUMBERED = re.compile(r"(?:EngineCore|ApiServer)_(\d{1,6})$|VllmWorker-(\d{1,6})$")
_TORCH_RANK = re.compile(r"\[rank(?P<rank>\d{1,6})\]:?")
_RFC3339 = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]?[:,]?\s*")
_OUTER = (
    re.compile(r"(?:stdout|stderr) [FP] "),
    re.compile(r"\d\d[OE][ +]"),
    re.compile(r"##\[[a-z]{1,20}\]\s*"),
    re.compile(r"<\d{1,3}>(?:1 )?"),
    re.compile(r"\[pod/[^\]\s]{1,255}\]\s*"),
    re.compile(r"[\w.-]{1,255} [\w@.\\-]{1,255}\[\d{1,10}\]: "),
    re.compile(r"\s{0,8}(?:>|--|\|)\s+"),
    re.compile(r"[\w.-]{1,80}\s+\|\s"),
    re.compile(r"(?:INFO|ERROR|WARNING|DEFAULT)(?= (?:\d{4}-\d\d-\d\dT|\[resource)) *"),
    re.compile(r"\[resource\.labels[^\]]{0,200}\]\s*"),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? [\w.-]{1,255} [^\s:\[]{1,255}(?:\[\d+\])?: "),
    re.compile(r"\[(?:Error|Info|Warning|Debug)\] \(Process\) ", re.IGNORECASE),
    re.compile(r"(?:INFO|ERROR|WARN) [\w:]{1,80}: VLLM: "),
    re.compile(r"\[Stage-\d+\]\s*"),
)
_REPEATED = re.compile(r"\s*\[repeated \d{1,6}x across cluster\].*$")
"""Ray's: what other workers printed is not known from it."""
_MESSAGES = ("log", "message", "msg", "MESSAGE", "textPayload", "line")
_OWN_KEYS = frozenset({"levelname", "processName", "vllm_process_name"})
"""Keys of vLLM's own JSON; around it a log shipper's may stand."""
_TIMES = ("time", "timestamp", "@timestamp")
_ROUNDS = 8
_LONGEST = 1 << 14
"""Characters of a line that are looked at; the longest of use, ``non-default args``, has a few thousand."""
_NESTING = 2
"""Docker's JSON around vLLM's."""


def lines(data: bytes, *, cut: bool = False) -> Iterator[Line]:
    """
    Yield the lines one record of a log holds, in order, without their envelopes.

    ``data`` is one physical line (any bytes), ``cut`` whether its end was dropped. Never raises.
    """
    yield from _unfold(data.decode("utf-8", "replace"), None, cut)


def _unfold(text: str, at: float | None, cut: bool, depth: int = 0) -> Iterator[Line]:
    parts = _ENDS.split(text.replace("\N{MINUS SIGN}", "-"))
    for number, part in enumerate(parts):
        torn = cut and number == len(parts) - 1
        if depth < _NESTING and '{"' in part:
            # A runtime's or a shipper's stamp may stand before it.
            inner, outer_at, _ = _outer(_COLOUR.sub("", part))
            found = _json_line(inner, depth, outer_at or at) if inner.startswith("{") else None
            if found is not None:
                yield from found
                continue
            torn = torn or inner.startswith("{")
        for piece, glued in _pieces(_CONTROL.sub(" ", _COLOUR.sub("", part))):
            long = len(piece) > _LONGEST
            line = _peel(piece[:_LONGEST].replace("**", "").replace("`", ""), at, torn or glued or long)
            if line.text or line.writer.pid is not None:
                yield line


def _pieces(part: str) -> Iterator[tuple[str, bool]]:
    """Split a physical line where another record starts in its middle; True where the piece's end is not its own."""
    cuts = {bar.end() for bar in _BAR.finditer(part)}
    previous = 0
    for prefix in _PREFIX.finditer(part):
        before = part[previous : prefix.start()]
        nested = not before.strip() or (previous == 0 and not _outer(before)[0].strip())
        if not nested:
            cuts.add(prefix.start())
        previous = prefix.end()
    edges = [0, *sorted(edge for edge in cuts if 0 < edge < len(part)), len(part)]
    for start, end in pairwise(edges):
        yield part[start:end], end != len(part)


def _outer(text: str) -> tuple[str, float | None, int | None]:
    """Return ``text`` without outer envelopes, the time and the rank they held."""
    at: float | None = None
    rank: int | None = None
    for _ in range(_ROUNDS):
        stamp = _RFC3339.match(text)
        if stamp is not None:
            at = _zoned(stamp[1]) or at
            text = text[stamp.end() :]
            continue
        torch = _TORCH_RANK.match(text)
        if torch is not None:
            rank, text = int(torch["rank"]), text[torch.end() :].lstrip()
            continue
        found = next((match for match in (pattern.match(text) for pattern in _OUTER) if match), None)
        if found is None:
            break
        text = text[found.end() :]
    return text, at, rank


def _peel(piece: str, at: float | None, cut: bool) -> Line:
    level = _LEVEL.search(piece, 0, 2000)
    head, text = (piece[: level.start()], piece[level.end() :]) if level else ("", piece)
    if level is None:
        text, outer_at, rank = _outer(text)
        at = outer_at or at
        neuron = _NEURON.match(text)
        if neuron is not None:
            return _from_neuron(neuron, at, cut)
        head, text = _own_prefixes(text)
        lost = _LEVEL_LOST.match(text)
        text = text[lost.end() :] if lost else text
    else:
        _, outer_at, rank = _outer(head)
        at = outer_at or at
    again = _TORCH_RANK.match(text)
    if again is not None:
        rank, text = int(again["rank"]), text[again.end() :].lstrip()
    if "[repeated" in text:
        text = _REPEATED.sub("", text)
    return Line(
        text=text.rstrip(),
        writer=_writer(head, rank),
        level=level["level"] if level else "",
        stamp=level["stamp"] if level else "",
        at=at,
        cut=cut,
    )


def _from_neuron(prefix: re.Match[str], at: float | None, cut: bool) -> Line:
    return Line(
        text=prefix.string[prefix.end() :].rstrip(),
        writer=Writer(pid=int(prefix["pid"])),
        level=prefix["level"].replace("FATAL", "CRITICAL"),
        at=at,
        cut=cut,
    )


def _own_prefixes(text: str) -> tuple[str, str]:
    """Split vLLM's process prefixes off the front of a line without a level."""
    end = 0
    while (match := _PREFIX.match(text, end)) or (match := _BARE_PREFIX.match(text, end)):
        end = match.end()
        while text[end : end + 1] == " " and text[end + 1 : end + 2] in "([":
            end += 1
    return text[:end], text[end:].removeprefix(" ")


def _writer(head: str, rank: int | None) -> Writer:
    prefixes = list(_PREFIX.finditer(head))
    if not prefixes:
        bare = _BARE_PREFIX.search(head)
        return _named(bare["name"], None, rank) if bare else Writer(rank=rank)
    found = prefixes[-1]
    printed = int(found["rank"]) if found["rank"] else rank
    return _named(found["name"], int(found["pid"]), printed)


def _named(name: str, pid: int | None, rank: int | None) -> Writer:
    groups = {kind: int(number) for kind, number in _GROUP.findall(name)}
    numbered = _NUMBERED.search(name)
    if numbered is not None:
        if numbered[2] is not None:
            rank = int(numbered[2]) if rank is None else rank
        elif name.startswith("EngineCore"):
            groups["DP"] = int(numbered[1])
    return Writer(process=name, pid=pid, rank=rank, groups=groups)


def _json_line(part: str, depth: int, at: float | None) -> list[Line] | None:
    try:
        entry: Any = json.loads(part)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    message = next((entry[key] for key in _MESSAGES if isinstance(entry.get(key), str)), None)
    if message is None:
        return None
    at = _entry_time(entry) or at
    if _OWN_KEYS.isdisjoint(entry):
        return list(_unfold(message, at, cut=False, depth=depth + 1))
    return [_from_json(entry, line) for line in _unfold(message, at, cut=False, depth=_NESTING)]


def _entry_time(entry: Mapping[str, Any]) -> float | None:
    stamp = entry.get("__REALTIME_TIMESTAMP")
    if isinstance(stamp, str) and stamp.isascii() and stamp.isdigit() and len(stamp) < 20:  # noqa: PLR2004 - 64 bits
        return int(stamp) / 1e6
    return next((_zoned(entry[key]) for key in _TIMES if isinstance(entry.get(key), str)), None)


def _from_json(entry: Mapping[str, Any], line: Line) -> Line:
    name = next((entry[key] for key in ("vllm_process_name", "processName") if isinstance(entry.get(key), str)), "")
    pid = entry.get("process")
    level, asctime = entry.get("levelname"), entry.get("asctime")
    stamp = re.match(r"\d{4}-(\d\d-\d\d \d\d:\d\d:\d\d)", asctime) if isinstance(asctime, str) else None
    return replace(
        line,
        writer=_named(name, pid if isinstance(pid, int) else None, None),
        level=level if isinstance(level, str) else "",
        stamp=stamp[1] if stamp else "",
    )


def _zoned(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 stamp; None without a zone, which would be a guess."""
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
