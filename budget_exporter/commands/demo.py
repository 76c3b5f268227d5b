"""Demo: build a synthetic host in a temporary folder, let it live, and serve it with the same code as any host."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from budget_exporter import sources
from budget_exporter.commands import serve
from budget_exporter.commands.serve import Settings
from budget_exporter.demo.host import Host
from budget_exporter.devices import AsyncDeviceSource, DeviceSource
from budget_exporter.errors import ConfigError
from budget_exporter.roots import Roots

__all__ = ["run"]

ABSENT = frozenset({"systemd", "journal", "rocm_smi"})
"""Sources that a synthetic host cannot have: no folder has a bus or a journal, and AMD's tools read the real /sys."""
LOOK = 3.0
"""Seconds this host has to show a device or an engine before it is taken to have none."""


def run(options: argparse.Namespace) -> int:
    """Serve the synthetic host, or this one where it has something to watch; return the exit status."""
    chosen = serve.settings(options)
    if options.if_nothing and _something_to_watch(chosen):
        return serve.run(chosen)
    if chosen.roots != Roots():
        raise ConfigError("--path.sysfs, --path.procfs, --path.rootfs: the demo builds its own host")
    if options.if_nothing:
        print("no accelerator and no engine found on this host: serving the demo host", file=sys.stderr)  # noqa: T201 - said before logging
    with (
        tempfile.TemporaryDirectory(prefix="budget-exporter-demo-") as folder,
        _host(Path(folder), options.scenario) as host,
    ):
        return serve.run(_demo_settings(chosen, host))


def _demo_settings(chosen: Settings, host: Host) -> Settings:
    return replace(
        chosen,
        config=chosen.config or host.config,
        roots=host.roots,
        off=chosen.off | ABSENT,
        demo=True,
    )


@contextlib.contextmanager
def _host(folder: Path, scenario: str) -> Iterator[Host]:
    """Build the host and run its life in a process of its own, which ends with ours whatever happens."""
    host = Host(folder)
    host.build()
    # Its standard input is our word that we live: it ends at end of file, and not by a key pressed in our terminal.
    player = subprocess.Popen(
        [sys.executable, "-m", "budget_exporter.demo.player", str(folder), scenario],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield host
    finally:
        if player.stdin is not None:
            player.stdin.close()
        try:
            player.wait(1)
        except subprocess.TimeoutExpired:
            player.kill()
            player.wait()


def _something_to_watch(chosen: Settings) -> bool:
    """Return whether a source finds a device or an engine within LOOK seconds."""
    found = threading.Event()
    looks = [threading.Thread(target=_look, args=(look, found), daemon=True) for look in _looks(chosen)]
    for thread in looks:
        thread.start()
    for thread in looks:
        thread.join(LOOK)
    return found.is_set()


def _looks(chosen: Settings) -> Iterator[Callable[[], bool]]:
    off = sources.switched_off(chosen.off, chosen.on)
    # Every host has memory: it is a device only where an engine is found that runs on the CPU.
    for name in (name for name in sources.enabled("devices", off) if name != "host"):
        yield lambda name=name: _has_devices(sources.load(name, chosen.roots))  # type: ignore[misc]
    for name in sources.enabled("engines", off):
        yield lambda name=name: bool(sources.load(name, chosen.roots).find()[0])  # type: ignore[misc]


def _has_devices(source: DeviceSource | AsyncDeviceSource) -> bool:
    # One that is read in the event loop has a platform of its own, and there is no loop yet.
    if inspect.iscoroutinefunction(source.read):
        return False
    return bool(cast("DeviceSource", source).read(frozenset()).devices)


def _look(look: Callable[[], bool], found: threading.Event) -> None:
    try:
        if look():
            found.set()
    except Exception:  # a source that fails finds nothing; serve would say why
        logging.getLogger("budget_exporter.demo").debug("look failed", exc_info=True)
