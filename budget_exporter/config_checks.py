"""What is wrong in a configuration that is right in form: each is one ConfigError naming file, line and key."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from budget_exporter.engines.address import configured
from budget_exporter.sources import INTERVALS, URLS

if TYPE_CHECKING:
    from budget_exporter.config import Config, EngineConfig, LogConfig, PendingConfig
    from budget_exporter.yaml_file import Document

__all__ = ["check"]

SUFFIX = ".service"


def check(document: Document[Config], sources: frozenset[str]) -> None:
    """
    Raise ConfigError for the first value in ``document`` that cannot be meant; ``sources`` are the names there are.

    Files that it names must be readable now: an error at the first use would come when nobody looks.
    """
    config = document.value
    for i in range(len(config.engines)):
        _check_engine(document, i)
    _check_floors(document, "floors", None)
    for i, name in enumerate(config.registry.files):
        _check_readable(document, f"registry.files[{i}]", name)
    for name, source in config.sources.items():
        if name not in sources:
            raise document.error(f"sources.{name}", f"no such source; there are {', '.join(sorted(sources))}")
        if source.interval is not None:
            _check_interval(document, name, source.interval)
        if source.url is not None:
            _check_url(document, name, source.url)


def _check_readable(document: Document[Config], key: str, name: str) -> None:
    try:
        with Path(name).open("rb"):
            pass
    except OSError as error:
        raise document.error(key, f"{name}: cannot be read: {error.strerror or error}") from error


def _check_absolute(document: Document[Config], key: str, name: str) -> None:
    if not name.startswith("/"):
        raise document.error(key, f"must be an absolute path, not {name!r}")


def _check_floors(document: Document[Config], key: str, engine: EngineConfig | None) -> None:
    floors = document.value.policy(engine).floors
    if floors.warning < floors.critical:
        raise document.error(key, f"warning ({floors.warning} bytes) is below critical ({floors.critical} bytes)")


def _check_interval(document: Document[Config], name: str, interval: float) -> None:
    key = f"sources.{name}.interval"
    if name not in INTERVALS:
        raise document.error(key, f"{name} is told of changes and has no interval")
    low, high = INTERVALS[name]
    if not low <= interval <= high:
        raise document.error(key, f"must be from {low:g} to {high:g} s, not {interval:g} s")


def _check_url(document: Document[Config], name: str, url: str) -> None:
    """Raise ConfigError for an address of another host: what a source says is about this one."""
    key = f"sources.{name}.url"
    if name not in URLS:
        raise document.error(key, f"{name} asks nobody")
    try:
        parts = urlsplit(url)
        plain = parts.scheme == "http" and parts.port is not None and not (parts.username or parts.password)
        local = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        plain = local = False
    if not (plain and local):
        raise document.error(key, "must be http://127.0.0.1:PORT/PATH, or another address of loopback")


def _check_units(document: Document[Config], key: str, engine: EngineConfig) -> None:
    """Raise ConfigError for a unit without its suffix: processes and the bus know it by its whole name only."""
    matched = engine.match.unit if engine.match is not None else None
    for where, unit in ((f"{key}.unit", engine.unit), (f"{key}.match.unit", matched)):
        if unit is not None and not unit.endswith(SUFFIX):
            raise document.error(where, f"must end in {SUFFIX}: {unit + SUFFIX!r}")


def _check_endpoint(document: Document[Config], key: str, engine: EngineConfig) -> None:
    """Raise ConfigError for an address that none is, and for a CA that nothing would be held against."""
    endpoint, ca = engine.endpoint, engine.endpoint_ca
    if isinstance(endpoint, str):
        try:
            configured(endpoint, ca)
        except ValueError as error:
            raise document.error(f"{key}.endpoint", str(error)) from error
        if ca is not None:
            _check_readable(document, f"{key}.endpoint_ca", ca)
    elif ca is not None:
        raise document.error(f"{key}.endpoint_ca", "needs an https address in endpoint")


def _check_pending(document: Document[Config], key: str, pending: PendingConfig | None) -> None:
    if pending is None:
        return
    if len(pending.given) != 1:
        raise document.error(key, "give exactly one of unit, quadlet, compose, env_file")
    if (pending.compose is None) != (pending.service is None):
        raise document.error(key, "compose and service go together")
    ((kind, name),) = pending.given
    if kind == "unit" and not name.endswith(SUFFIX):
        raise document.error(f"{key}.unit", f"must end in {SUFFIX}: {name + SUFFIX!r}")
    if kind != "unit":
        _check_absolute(document, f"{key}.{kind}", name)


def _check_log(document: Document[Config], key: str, log: LogConfig) -> None:
    if len(log.given) != 1:
        raise document.error(key, "give exactly one of file, journal, container, pods, none")
    if log.file is not None:
        _check_absolute(document, f"{key}.file", log.file)
    if log.pods is not None and [bool(part) for part in log.pods.split("/")] != [True] * 3:
        raise document.error(f"{key}.pods", f"not NAMESPACE/POD/CONTAINER: {log.pods!r}")


def _check_engine(document: Document[Config], i: int) -> None:
    """Raise ConfigError for what is wrong with one engine by itself or beside those before it."""
    engine, before = document.value.engines[i], document.value.engines[:i]
    key, log = f"engines[{i}]", engine.log
    if engine.name in {other.name for other in before}:
        raise document.error(f"{key}.name", f"another engine is called {engine.name!r}")
    if engine.match is not None and len(engine.match.given) != 1:
        raise document.error(f"{key}.match", "give exactly one of unit, container, served_model_name, port")
    if engine.exclude and engine.match is None:
        raise document.error(f"{key}.exclude", "needs a match: what is it that is excluded?")
    if log is not None:
        _check_log(document, f"{key}.log", log)
    _check_units(document, key, engine)
    _check_endpoint(document, key, engine)
    _check_pending(document, f"{key}.pending", engine.pending)
    for other in before:
        if engine.match is not None and engine.match == other.match:
            raise document.error(f"{key}.match", f"engine {other.name!r} has the same")
        if log is not None and log.file is not None and other.log is not None and other.log.file == log.file:
            raise document.error(f"{key}.log.file", f"engine {other.name!r} has the same log")
    for k, window in enumerate(engine.maintenance):
        if window.until <= window.begin:
            raise document.error(f"{key}.maintenance[{k}].until", "not after the window's beginning")
    _check_floors(document, f"{key}.floors", engine)
