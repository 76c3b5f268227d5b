"""
Merge dotted keys (``-cc.mode=3``, ``--hf-overrides.x 1``) into the JSON objects they stand for.

Source: vLLM 0.32 ``utils/argparse_utils.py`` ``FlexibleArgumentParser.parse_args``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from budget_exporter.units import human_int

__all__ = ["merge_dotted"]


def merge_dotted(args: Sequence[str], faults: list[str]) -> list[str]:
    """
    Take dotted keys out of ``args`` and put one flag with a JSON object for each behind all others, as the engine does.

    Keys with more dots nest, a key that ends in ``+`` adds to a list. Whatever starts with a dash and has a dot is
    taken for one, a negative number too. What the engine would break off at is added to ``faults``.
    """
    kept: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    rest: Iterator[str] = iter(args)
    for arg in rest:
        key, equals, value = arg.partition("=")
        if not arg.startswith("-") or "." not in key:
            kept.append(arg)
            continue
        follows = value if equals else next(rest, None)
        if follows is None:
            faults.append(f"{key}: no value follows it")
            continue
        try:
            _merge(dotted, key, follows)
        except (ValueError, RecursionError, OverflowError, AttributeError):
            faults.append(f"{key}: cannot be merged with what was given before")
    for flag, values in dotted.items():
        try:
            kept += [flag, json.dumps(values)]
        except RecursionError:
            faults.append(f"{flag}: nested too deep")
    return kept


def _merge(dotted: dict[str, dict[str, Any]], key: str, text: str) -> None:
    if key.endswith("+"):
        key, value = key[:-1], text.split(",")
    else:
        value = _value(text)
    flag, *path = key.split(".")
    nested: Any = value
    for part in reversed(path):
        nested = {part: nested}
    _update(dotted.setdefault(flag, {}), nested)


def _update(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _update(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            old += value
        else:
            into[key] = value


def _value(text: str) -> Any:
    """Return the value of a dotted key: JSON, else a number as people write it, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return human_int(text)
        except ValueError:
            return text
