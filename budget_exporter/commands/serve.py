"""Serve: run the sidecar and its HTTP endpoints until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import platform
import re
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from budget_exporter import __version__, config
from budget_exporter.errors import ConfigError
from budget_exporter.logs import set_up
from budget_exporter.publish import http
from budget_exporter.publish.exposition import Exposition
from budget_exporter.roots import Roots
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES

__all__ = ["Settings", "run", "settings"]

DEFAULT_LISTEN = ":19470"
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]/]*)):(?P<port>[0-9]{1,5})")
_LOG = logging.getLogger("budget_exporter")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the flags say, checked."""

    config: Path | None = None
    listen: tuple[tuple[str | None, int], ...] = ((None, 19470),)
    telemetry: str = "/metrics"
    roots: Roots = field(default_factory=Roots)
    state: Path | None = None
    off: frozenset[str] = frozenset()
    on: frozenset[str] = frozenset()
    level: str = "info"
    format: str = "logfmt"
    demo: bool = False


def settings(options: argparse.Namespace) -> Settings:
    """Return the settings that the parsed flags give; raise ConfigError naming the flag that is wrong."""
    if not options.telemetry.startswith("/"):
        raise ConfigError(f"--web.telemetry-path: must start with a slash: {options.telemetry!r}")
    for flag, path in (("sysfs", options.sysfs), ("procfs", options.procfs), ("rootfs", options.rootfs)):
        try:
            there = path.is_dir()
        except OSError as error:
            raise ConfigError(f"--path.{flag}: {path}: {error.strerror}") from error
        if not there:
            raise ConfigError(f"--path.{flag}: no such directory: {path}")
    return Settings(
        config=options.config,
        listen=tuple(_address(text) for text in options.listen or [DEFAULT_LISTEN]),
        telemetry=options.telemetry,
        roots=Roots(
            options.sysfs, options.procfs, options.rootfs, tuple(options.container_sockets), options.neuron_hook
        ),
        state=_state(options.state),
        off=frozenset(name for name in SOURCES if getattr(options, f"source_{name}") is False),
        on=frozenset(name for name in SOURCES if getattr(options, f"source_{name}") is True),
        level=options.level,
        format=options.format,
    )


def _address(text: str) -> tuple[str | None, int]:
    """Return (host or None for all addresses, port) of ``[HOST]:PORT``; an IPv6 host stands in brackets."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:  # noqa: PLR2004 - the largest port there is
        raise ConfigError(f"--web.listen-address: not [HOST]:PORT: {text[:80]!r}")
    if ":" in (match["host"] or ""):
        raise ConfigError(f"--web.listen-address: an IPv6 address stands in brackets: {text[:80]!r}")
    return match["six"] or match["host"] or None, int(match["port"])


def _state(given: str | None) -> Path | None:
    if given is not None:
        return Path(given) if given else None
    directory = os.environ.get("STATE_DIRECTORY")
    # systemd gives several directories as a colon-separated list; the first is ours.
    return Path(directory.split(":")[0]) / "state.json" if directory else None


def run(chosen: Settings) -> int:
    """
    Serve until SIGTERM or SIGINT; return the exit status.

    Raise ConfigError where the configuration or a registry is wrong.
    """
    set_up(chosen.level, chosen.format)
    hung_up = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: hung_up.set())
    loaded = config.load(chosen.config, frozenset(SOURCES))
    sidecar = Sidecar(loaded, _options(chosen))
    # Not asyncio.run: it waits for threads, and one that hangs in the kernel never ends.
    return asyncio.new_event_loop().run_until_complete(_serve(sidecar, chosen, hung_up))


def _options(chosen: Settings) -> Options:
    return Options(
        roots=chosen.roots,
        state_file=chosen.state,
        off=chosen.off,
        on=chosen.on,
        demo=chosen.demo,
        version=__version__,
        revision=os.environ.get("BUDGET_EXPORTER_REVISION", "unknown"),
        python_version=platform.python_version(),
    )


async def _serve(sidecar: Sidecar, chosen: Settings, hung_up: threading.Event) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def reload() -> None:
        sidecar.reload(lambda: config.load(chosen.config, frozenset(SOURCES)))

    loop.add_signal_handler(signal.SIGHUP, reload)
    if hung_up.is_set():
        reload()
    # Rendered when a Snapshot is made, so that a scrape is served from bytes.
    exposition = Exposition()
    sidecar.publish = exposition.render
    application = http.application(lambda: sidecar.snapshot, telemetry_path=chosen.telemetry, exposition=exposition)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        listening = asyncio.create_task(_listen(runner, chosen), name="listen")
        if not await _first(listening, stop):
            return 0  # told to stop while a name was looked up
        return await _watch(sidecar, stop) if listening.result() else 1
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, chosen: Settings) -> bool:
    """Listen on every address; return whether that could be done."""
    for host, port in chosen.listen:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            _LOG.error("--web.listen-address: cannot listen on %s: %s", _shown(host or "", port), _reason(error))
            return False
    for address in runner.addresses:
        _LOG.info("listening on %s", _shown(address[0], address[1]))
    return True


async def _first(task: asyncio.Task[Any], stop: asyncio.Event) -> bool:
    """Return whether ``task`` is done before ``stop`` is set."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    return task.done()


async def _watch(sidecar: Sidecar, stop: asyncio.Event) -> int:
    """Run the sidecar until told to stop; return 1 where it ended by itself."""
    # What start-up left behind is never garbage: without this every full collection walks all of it.
    gc.collect()
    gc.freeze()
    watch = asyncio.create_task(sidecar.run(), name="sidecar")
    if await _first(watch, stop):
        _LOG.critical("the sidecar ended", exc_info=watch.exception())
        return 1
    watch.cancel()
    await asyncio.wait({watch}, timeout=0.8)
    _LOG.info("stopped")
    return 0


def _reason(error: OSError) -> str:
    # A failed bind carries asyncio's long sentence, a failed look-up of a name (a negative number) the resolver's own.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
