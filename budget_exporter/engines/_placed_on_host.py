"""Engines that run on the CPU: which they are, and on which NUMA node each rank's memory is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape

__all__ = ["place_on_host", "runs_on_cpu"]

BIND = "VLLM_CPU_OMP_THREADS_BIND"
VISIBLE = "CPU_VISIBLE_MEMORY_NODES"
SIMULATED = "VLLM_CPU_SIM_MULTI_NUMA"
NEURON = "VLLM_NEURON_CPU_MODE"
_CPUS = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*")
_ASSUMED = "assumed: no cpuset keeps the engine from a NUMA node"


def runs_on_cpu(shape: Shape, report: BootReport | None) -> bool:
    """
    Return whether the engine runs on the host's CPU.

    What it says itself decides (``device_config=cpu``). Until then a build for CPUs (version ``0.32.0+cpu``) does, or
    ``--device cpu`` (vLLM to 0.9). The Neuron worker's CPU mode is on the CPU too, whatever the engine is called.
    """
    said = report.device_type if report is not None else None
    if said in (None, "neuron") and shape.environ.get(NEURON, "").strip().lower() in ("1", "true"):
        return True
    if said is not None:
        return said == "cpu"
    build = (shape.version or "").partition("+")[2]
    return build.split(".")[0] == "cpu" or shape.given.get("device") == "cpu"


def place_on_host(
    names: Sequence[str],
    shape: Shape,
    environ: Mapping[str, str] | None,
    devices: Sequence[DeviceIdentity],
    report: BootReport | None,
) -> tuple[Placement, ...]:
    """
    Return one placement a rank of this host: the NUMA node a worker's memory is bound to.

    ``names`` are the ranks in the order of local ranks, ``environ`` is the main process's, ``devices`` are all of the
    host. The node that the engine's log names decides; then a host with one node needs no rule; then
    VLLM_CPU_OMP_THREADS_BIND: a rank's memory is on the node of the first CPU it is bound to, with ``auto`` (the
    default) rank N has the Nth node it may use. Ranks of an engine on several hosts are not told apart.
    Source: vLLM 0.20 to 0.33 ``v1/worker/cpu_worker.py``, ``utils/ompmultiprocessing.py``.
    """
    if shape.given.get("nnodes", "1") != "1":
        return tuple(Placement(name, None, "the engine runs on several hosts") for name in names)
    nodes = {each.order: each for each in devices if each.platform == "host" and each.order is not None}
    if not nodes:
        return tuple(Placement(name, None, "no memory of the host is known") for name in names)
    placed = []
    for at, name in enumerate(names):
        told = report.of(int(name)).node if report is not None and name.isdecimal() else None
        if told is not None:
            placed.append(_on(name, nodes, told, f"the engine names node {told}, which is not known"))
        elif len(nodes) == 1:
            placed.append(Placement(name, next(iter(nodes.values())).device))
        else:
            placed.append(_bound(name, at, len(names), environ, nodes))
    return tuple(placed)


def _on(name: str, nodes: Mapping[int, DeviceIdentity], node: int, otherwise: str, why: str = "") -> Placement:
    found = nodes.get(node)
    return Placement(name, None, otherwise) if found is None else Placement(name, found.device, why)


def _bound(
    name: str, at: int, ranks: int, environ: Mapping[str, str] | None, nodes: Mapping[int, DeviceIdentity]
) -> Placement:
    """Place the rank at position ``at`` among several nodes by what its threads are bound to."""
    if environ is None:
        return Placement(name, None, "several NUMA nodes, and the environment cannot be read")
    bind = environ.get(BIND, "auto")
    if bind == "nobind" or environ.get(SIMULATED, "0") != "0":
        return Placement(name, None, "several NUMA nodes, and threads are bound to none of them")
    if bind == "auto":
        return _automatic(name, at, environ, nodes)
    lists = bind.split("|")
    if len(lists) != ranks or not _CPUS.fullmatch(lists[at].strip()):
        return Placement(name, None, f"{BIND} names no CPUs for this rank")
    first = min(_range(part)[0] for part in lists[at].strip().split(","))
    for number, node in nodes.items():
        if any(low <= first <= high for low, high in map(_range, _parts(node.cpus))):
            return _on(name, nodes, number, "")
    return Placement(name, None, f"the NUMA node of CPU {first} is not known")


def _automatic(name: str, at: int, environ: Mapping[str, str], nodes: Mapping[int, DeviceIdentity]) -> Placement:
    visible = environ.get(VISIBLE, "")
    if visible:
        entries = [entry.strip() for entry in visible.split(",")]
        if not all(entry.isascii() and entry.isdecimal() and len(entry) < 6 for entry in entries):  # noqa: PLR2004 - a kernel has 1024 nodes at most
            return Placement(name, None, f"{VISIBLE} is no list of nodes")
        usable = [int(entry) for entry in entries if int(entry) in nodes]
    else:
        usable = sorted(nodes)
    if at >= len(usable):
        return Placement(name, None, f"rank above the {len(usable)} NUMA node(s) the engine may use")
    return _on(name, nodes, usable[at], "", _ASSUMED)


def _parts(cpus: str) -> list[str]:
    return cpus.split(",") if _CPUS.fullmatch(cpus) else []


def _range(part: str) -> tuple[int, int]:
    low, _, high = part.partition("-")
    return int(low), int(high or low)
