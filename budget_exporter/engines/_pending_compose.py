"""
Tell from a compose file what the next ``up`` of a service runs.

Source: the Compose specification ("Interpolation", "Merge", ``command``, ``entrypoint``, ``environment``,
``env_file``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from budget_exporter.engines._environment_files import dotenv
from budget_exporter.engines._plan import Plan, Trail, UnresolvedError
from budget_exporter.engines._yaml import load

__all__ = ["planned_by_compose"]

_OVERRIDES = {
    "compose.yaml": ("compose.override.yaml", "compose.override.yml"),
    "compose.yml": ("compose.override.yml", "compose.override.yaml"),
    "docker-compose.yml": ("docker-compose.override.yml", "docker-compose.override.yaml"),
    "docker-compose.yaml": ("docker-compose.override.yaml", "docker-compose.override.yml"),
}
"""What compose reads beside its file where that has one of the usual names."""
_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*))?\}|([A-Za-z_]\w*))")


def planned_by_compose(trail: Trail, path: str, service: str) -> Plan:
    """
    Return what ``service`` of the compose file at ``path`` runs.

    Raise UnresolvedError where the image decides that, where a variable is set in no file beside it, and for what is
    taken from other files (``extends``, ``include``); SourceError for a file that cannot be read.
    """
    folder, _, name = path.rpartition("/")
    layers = [_service(trail, path, service)]
    if layers[0] is None:
        raise UnresolvedError("the compose file is not there, or has no such service")
    for other in _OVERRIDES.get(name, ()):
        layer = _service(trail, f"{folder}/{other}", service)
        if layer is not None:
            layers.append(layer)
            break
    variables = dotenv(trail.text(f"{folder}/.env") or "")
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    environ: dict[str, str] = {}
    files: list[str] = []
    cwd: str | None = None
    for layer in (layer for layer in layers if layer is not None):
        if "extends" in layer:
            raise UnresolvedError("the service extends another")
        entrypoint = _words(layer.get("entrypoint"), variables) if "entrypoint" in layer else entrypoint
        command = _words(layer.get("command"), variables) if "command" in layer else command
        environ |= _environment(layer.get("environment"), variables)
        files += _files(layer.get("env_file"), variables)
        cwd = _interpolated(str(layer["working_dir"]), variables) if layer.get("working_dir") else cwd
    if command is None and entrypoint is None:
        raise UnresolvedError("the image decides what runs: the service has no command")
    environ = _of_files(trail, folder, files) | environ
    words = (*(entrypoint or ()), *(command or ()))
    return Plan(words, environ, cwd, image=not entrypoint)


def _service(trail: Trail, path: str, service: str) -> Mapping[str, Any] | None:
    text = trail.text(path)
    if text is None:
        return None
    try:
        document = load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UnresolvedError(f"the compose file is not YAML{f', line {mark.line + 1}' if mark else ''}") from error
    services = document.get("services") if isinstance(document, Mapping) else None
    found = services.get(service) if isinstance(services, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _words(value: Any, variables: Mapping[str, str]) -> list[str] | None:
    """Return a command's words: text is split as a shell does, a list is taken as it is."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_interpolated(str(word), variables) for word in value]
    try:
        return shlex.split(_interpolated(str(value), variables))
    except ValueError as error:
        raise UnresolvedError("a quote in the command does not end") from error


def _environment(value: Any, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables; one without a value comes from who starts it, and is left out."""
    if isinstance(value, Mapping):
        pairs = [(str(name), setting) for name, setting in value.items()]
    else:
        parts = [str(word).partition("=") for word in value] if isinstance(value, list) else []
        pairs = [(name, setting if equals else None) for name, equals, setting in parts]
    return {
        name: _interpolated(_scalar(setting), variables)
        for name, setting in pairs
        if setting is not None and (isinstance(setting, str | int | float))
    }


def _scalar(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _files(value: Any, variables: Mapping[str, str]) -> list[str]:
    entries = value if isinstance(value, list) else [] if value is None else [value]
    found: list[str] = []
    for entry in entries:
        path = entry.get("path") if isinstance(entry, Mapping) else entry
        optional = isinstance(entry, Mapping) and entry.get("required") is False
        found += [("-" if optional else "") + _interpolated(str(path), variables)]
    return found


def _of_files(trail: Trail, folder: str, files: list[str]) -> dict[str, str]:
    environ: dict[str, str] = {}
    for file in files:
        path = file.removeprefix("-")
        text = trail.text(path if path.startswith("/") else f"{folder}/{path}")
        if text is None and not file.startswith("-"):
            raise UnresolvedError("a file of env_file is not there")
        environ |= dotenv(text or "")
    return environ


def _interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Put in ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and their like."""

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name, how, word = match[2] or match[5], match[3] or "", match[4] or ""
        value = variables.get(name)
        there = bool(value) if how.startswith(":") else value is not None
        if how.endswith("+"):
            return word if there else ""
        if there and value is not None:
            return value
        if how.endswith("-"):
            return word
        raise UnresolvedError(f"the value of ${name} is not known")

    return _VARIABLE.sub(put, text)
