"""The sources there are, which of them are on, and how each is loaded: by its name, when it is enabled."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from budget_exporter.roots import Roots

__all__ = ["INTERVALS", "OFF_BY_DEFAULT", "SOURCES", "URLS", "WHAT", "enabled", "load", "switched_off"]

Room = Literal["devices", "engines", "daemons", "endpoints", "evidence", "supervisors", "starts"]
SOURCES: dict[str, Room] = {
    "amdgpu": "devices",
    "nvidia": "devices",
    "host": "devices",
    "amd_processes": "devices",
    "rocm_smi": "devices",
    "neuron": "devices",
    "neuron_hook": "devices",
    "neuron_monitor": "devices",
    "gaudi": "devices",
    "tpu": "devices",
    "procfs": "engines",
    "containers": "daemons",
    "endpoint": "endpoints",
    "pending": "starts",
    "systemd": "supervisors",
    "podman": "supervisors",
    "docker": "supervisors",
    "file": "evidence",
    "journal": "evidence",
    "container_logs": "evidence",
    "pods": "evidence",
}
"""Name of the module to the room it is in: flag, configuration key and ``source`` label are this name."""
WHAT: dict[str, str] = {
    "amdgpu": "AMD cards",
    "nvidia": "NVIDIA cards and MIG instances",
    "host": "NUMA nodes, where an engine runs on the CPU",
    "amd_processes": "who holds memory of AMD cards",
    "rocm_smi": "AMD's own tools, as a cross-check",
    "neuron": "AWS Neuron devices",
    "neuron_hook": "the Neuron runtime inside an engine with our hook",
    "neuron_monitor": "who holds memory of Neuron devices, by neuron-monitor",
    "gaudi": "Intel Gaudi cards",
    "tpu": "TPU chips",
    "procfs": "vLLM servers and their flags",
    "containers": "which container an engine is in",
    "endpoint": "an engine's own /health and /metrics",
    "pending": "how an engine would start next time",
    "systemd": "units: state and restarts",
    "podman": "podman's containers: state and restarts",
    "docker": "docker's containers: state and restarts",
    "file": "logs in files",
    "journal": "logs in journald",
    "container_logs": "logs that podman and docker keep",
    "pods": "logs in /var/log/pods",
}
"""Each source in a few words, for --help."""
OFF_BY_DEFAULT: frozenset[str] = frozenset({"rocm_smi", "neuron_monitor"})
"""Sources that are on only where a flag or the configuration says so: they do what the others never do."""
INTERVALS: dict[str, tuple[float, float]] = {
    # A sample is shown for three seconds; ten a second miss no spike that a scheduler step makes.
    "amdgpu": (0.02, 1.0),
    # The lists of processes are asked for once a second at most.
    "nvidia": (0.1, 10.0),
    # A read of two small files.
    "host": (0.1, 10.0),
    # A process's figures are shown beside its card's.
    "amd_processes": (0.2, 10.0),
    # A child process that costs a tenth of a second of a core.
    "rocm_smi": (10.0, 3600.0),
    # The driver's own peak tells of most of what lies between two samples; a large host has 128 cores.
    "neuron": (0.05, 1.0),
    # Hooks write every ten seconds at most.
    "neuron_hook": (1.0, 60.0),
    # The tool itself looks every five seconds.
    "neuron_monitor": (1.0, 60.0),
    # A call of libhlml for each card; hl-smi, where it has to do, is run every ten seconds at most.
    "gaudi": (0.2, 60.0),
    # Two calls over a socket of this host.
    "tpu": (0.5, 60.0),
    # What the supervisor says of an end is tied to what the next look finds.
    "procfs": (0.2, 2.0),
    # Health; metrics every second time until their figures are known, then every sixth.
    "endpoint": (1.0, 60.0),
    # Files that people change; a look at one that has not changed is a call of stat.
    "pending": (1.0, 3600.0),
}
"""Shortest and longest interval in seconds of the sources that look; the others are told of changes and have none."""
URLS: frozenset[str] = frozenset({"neuron_monitor"})
"""Sources that can be told where to ask."""
_PACKAGES: dict[str, str] = {
    "daemons": "engines",
    "endpoints": "engines",
    "starts": "engines",
    "supervisors": "engines",
}
"""The package of a room whose name is another."""


def switched_off(
    off: frozenset[str], on: frozenset[str], configured: Mapping[str, bool | None] | None = None
) -> frozenset[str]:
    """
    Return the names of the sources that are off.

    ``off`` and ``on`` are those of which a flag says so, ``configured`` what the configuration says of a source: a
    flag goes before the configuration, and that before the default.
    """
    said = configured or {}
    default = {name: said.get(name) for name in SOURCES if name not in off | on}
    return off | {name for name, use in default.items() if use is False or (use is None and name in OFF_BY_DEFAULT)}


def enabled(room: Room, off: frozenset[str]) -> list[str]:
    """Return the names of the enabled sources of ``room``."""
    return [name for name, home in SOURCES.items() if home == room and name not in off]


def load(
    name: str,
    roots: Roots,
    interval: float | None = None,
    clock: Callable[[], float] | None = None,
    url: str | None = None,
) -> Any:
    """
    Return the source ``name``; only now is its module imported, so that an unused platform costs nothing.

    ``clock`` gives Unix time to a source that tells any, in place of its own; ``url`` is where one of URLS asks.
    """
    room = SOURCES[name]
    package = _PACKAGES.get(room, room)
    module = importlib.import_module(f"budget_exporter.{package}.{name}")
    if room == "supervisors":
        return module.supervisor(roots)
    given: dict[str, Any] = {} if interval is None else {"interval": interval}
    if clock is not None and "clock" in inspect.signature(module.source).parameters:
        given["clock"] = clock
    if url is not None:
        given["url"] = url
    return module.source(roots, **given)
