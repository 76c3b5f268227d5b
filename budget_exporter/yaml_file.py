"""YAML into typed values, with errors that name file, key and line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import yaml

from budget_exporter.errors import ConfigError
from budget_exporter.units import parse_duration, parse_size

__all__ = ["Document", "Duration", "Size", "load"]

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_LARGEST = 2**63 - 1
"""Bytes; more is a slip of the hand, and no figure could be exported."""


class Size(int):
    """Bytes, written with a unit: ``256MiB``."""


class Duration(float):
    """Seconds, written with a unit: ``100ms``."""


@dataclass(frozen=True, slots=True)
class Document(Generic[V_co]):
    """A typed document and where its keys stand, so that what is found wrong later can be pointed at too."""

    path: Path
    value: V_co
    lines: Mapping[str, int]

    def error(self, key: str, what: str) -> ConfigError:
        """Return the error for ``key`` (``engines[0].match``): one line with file, line and key."""
        return ConfigError(f"{self.path}:{_line(self.lines, f'$.{key}')}: {key}: {what}")


def load(path: Path, kind: type[T]) -> Document[T]:
    """
    Return the document at ``path`` as ``kind`` (an msgspec Struct that forbids unknown fields).

    An empty file is an empty mapping. Raise ConfigError with one line naming file, line and key where the file cannot
    be read, is not YAML, repeats a key, has an unknown key or a value of the wrong type or unit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    lines: dict[str, int] = {"$": 1}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            data = {} if node is None else _plain(loader, node, "$", lines, path)
        except RecursionError:
            raise ConfigError(f"{path}: nested too deep, or within itself") from None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    try:
        return Document(path, msgspec.convert(data, kind, dec_hook=_units), lines)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(path, _resolved(str(error), data, kind), lines)) from error


def _plain(loader: yaml.SafeLoader, node: yaml.Node, at: str, lines: dict[str, int], path: Path) -> Any:
    """Return ``node`` as plain values and note the line of every key and item, by msgspec's path notation."""
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, f"{at}[{i}]", lines, path) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node, path)
    result: dict[str, Any] = {}
    for key_node, value in node.value:
        key = str(_scalar(loader, key_node, path))
        line = key_node.start_mark.line + 1
        if key in result:
            raise ConfigError(f"{path}:{line}: key {key!r} is given twice")
        lines[f"{at}.{key}"] = line
        result[key] = _plain(loader, value, f"{at}.{key}", lines, path)
    return result


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Any:
    """Return the value of a node without keys; what only looks like a date or a number is an error of its own."""
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {node.value!r}: {error}") from error


def _units(kind: type[Any], value: Any) -> Any:
    """Convert sizes and durations; msgspec adds the path to what is raised here."""
    if not isinstance(value, str):
        what = "size with a unit such as 256MiB" if kind is Size else "duration with a unit such as 5s"
        raise ValueError(f"expected a {what}, got {value!r}")  # noqa: TRY004 - msgspec reports ValueError with its path
    if kind is Size:
        size = parse_size(value)
        if size > _LARGEST:
            raise ValueError(f"too large: {value[:40]!r}")
        return Size(size)
    duration = parse_duration(value)
    if math.isinf(duration):
        raise ValueError(f"too long: {value[:40]!r}")
    return Duration(duration)


def _resolved(message: str, data: Any, kind: type[Any]) -> str:
    """Return ``message`` with the key that msgspec leaves out of a mapping's path (``$.sources[...].interval``)."""
    match = _AT.match(message)
    at = match["path"] if match else None
    if not at or "[...]" not in at:
        return message
    prefix, _, rest = at.partition("[...]")
    name = prefix.removeprefix("$.")
    for key, value in data[name].items():
        try:
            msgspec.convert({**data, name: {key: value}}, kind, dec_hook=_units)
        except msgspec.ValidationError:
            return message.replace(at, f"{prefix}.{key}{rest}")
    return message


def _explain(path: Path, message: str, lines: dict[str, int]) -> str:
    match = _AT.match(message)
    what, at = (match["what"], match["path"] or "$") if match else (message, "$")
    unknown = _UNKNOWN.search(what)
    if unknown:
        at = f"{at}.{unknown['key']}"
        what = "unknown key"
    key = at.removeprefix("$").removeprefix(".") or "the document"
    return f"{path}:{_line(lines, at)}: {key}: {what[:1].lower()}{what[1:]}"


def _line(lines: Mapping[str, int], at: str) -> int:
    """Return the line of a key, or of the nearest thing around it that has one."""
    while at not in lines and at != "$":
        at = at[: max(at.rfind("."), at.rfind("["), 1)]
    return lines.get(at, 1)
