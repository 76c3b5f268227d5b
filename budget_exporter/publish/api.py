"""The Snapshot as JSON: everything that is published, nothing that must stay in the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish.flags import shown
from budget_exporter.publish.text import presentable

__all__ = ["snapshot_json"]

# What may be shown of an engine's processes. The rest stays: command line and environment hold API keys and tokens, and
# so does a worker's title until the worker has set its own, and now and then a path.
_SIGHTING = frozenset({"source", "main", "started_at", "workers", "unit", "container", "supervisor", "inner_pid"})
_WORKER = frozenset({"pid", "rank"})
_LARGEST = 2**63


def snapshot_json(snapshot: Snapshot) -> bytes:
    """
    Return ``snapshot`` as JSON in UTF-8; field names are those of the facts, absent facts are null.

    Of processes only what is needed to find them is shown. Integers that do not fit 64 bits are null.
    """
    view = msgspec.to_builtins(snapshot, str_keys=True, enc_hook=_plain)
    for engine in view["engines"]:
        if engine["sighting"] is not None:
            engine["sighting"] = _only(engine["sighting"], _SIGHTING)
            engine["sighting"]["workers"] = [_only(worker, _WORKER) for worker in engine["sighting"]["workers"]]
        if engine["shape"] is not None:
            engine["shape"]["given"] = shown(engine["shape"]["given"])
            engine["shape"]["environ"] = shown(engine["shape"]["environ"])
        if engine["report"] is not None:
            engine["report"]["args"] = shown(engine["report"]["args"])
    return msgspec.json.encode(_clean(view))


def _plain(value: object) -> object:
    """Turn a read-only mapping into a dict; msgspec knows only dict itself."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _only(view: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if name in names}


def _clean(value: Any) -> Any:
    """Make every string presentable and drop integers that other readers of JSON would round or refuse."""
    if isinstance(value, str):
        return presentable(value)
    if isinstance(value, dict):
        return {presentable(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return None
    return value
