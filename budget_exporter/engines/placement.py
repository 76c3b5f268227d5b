"""Tell which device each rank of an engine runs on, or that it cannot be told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from budget_exporter.engines._placed_on_host import place_on_host, runs_on_cpu
from budget_exporter.engines._visible import visible_to_cuda, visible_to_hip
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape, Worker

__all__ = ["place"]

_MOST_RANKS = 1024
"""No host has as many: flags that ask for more are a mistake, and no reason for as many series."""
_COUNT = re.compile(r"[0-9]{1,9}")
_ASSUMED = "assumed: the environment cannot be read, but there are as many devices as ranks"


def place(
    shape: Shape,
    environ: Mapping[str, str] | None,
    workers: Sequence[Worker],
    devices: Sequence[DeviceIdentity],
    report: BootReport | None = None,
) -> tuple[Placement, ...]:
    """
    Return one placement a rank of this host: ``0``, ``1``, … and ``d0.0``, ``d1.0``, … with data parallelism.

    ``environ`` is the main process's, None where it may not be read; ``devices`` are all of the host, of which those
    without ``order`` cannot be opened by the engine. A worker's device is its local rank's place in the visible list
    (vLLM 0.8.5 to 0.33, ``v1/worker/gpu_worker.py``). Where that is not all there is to it, the device is None and
    ``why`` says so; more than 1024 ranks are none. The host's memory is the device of engines on the CPU only, and
    ``report`` tells which those are.
    """
    names = _names(shape)
    if runs_on_cpu(shape, report):
        return place_on_host(names, shape, environ, devices, report)
    why = _unresolved(shape, workers)
    if why:
        return tuple(Placement(name, None, why) for name in names)
    visible, why = _visible(environ, devices, len(names))
    if visible is None:
        return tuple(Placement(name, None, why) for name in names)
    few = f"rank above the {len(visible)} device(s) the engine sees"
    return tuple(
        Placement(name, visible[at].device, why) if at < len(visible) else Placement(name, None, few)
        for at, name in enumerate(names)
    )


def _names(shape: Shape) -> list[str]:
    inside = shape.tensor_parallel_size * shape.pipeline_parallel_size
    replicas = _replicas(shape)
    if inside * (replicas.stop - replicas.start) > _MOST_RANKS:
        return []
    if shape.data_parallel_size == 1:
        return [str(rank) for rank in range(inside)]
    return [f"d{replica}.{rank}" for replica in replicas for rank in range(inside)]


def _replicas(shape: Shape) -> range:
    """
    Return which replicas run on this host; none for a server whose engines are all elsewhere.

    Source: vLLM 0.9 to 0.32, ``engine/arg_utils.py``: with a rank of its own a server has that replica, else so many
    from the first on as are said to be local, by default all.
    """
    rank, local, start = (
        int(text) if _COUNT.fullmatch(text := shape.given.get(f"data-parallel-{name}", "")) else None
        for name in ("rank", "size-local", "start-rank")
    )
    if rank is not None:
        return range(rank, rank + 1)
    if local is None:
        return range(shape.data_parallel_size)
    return range(start or 0, (start or 0) + local)


def _unresolved(shape: Shape, workers: Sequence[Worker]) -> str:
    """Return what keeps ranks from simply following the visible list, nothing where nothing does."""
    given, tensor = shape.given, shape.tensor_parallel_size
    backend = given.get("distributed-executor-backend", "mp")
    highest = max((worker.rank for worker in workers if worker.rank is not None), default=0)
    reasons = {
        "pipeline and data parallel ranks are not resolved": shape.pipeline_parallel_size * shape.data_parallel_size
        > 1,
        "context parallel ranks are not resolved": given.get("prefill-context-parallel-size", "1") != "1",
        "the engine runs on several hosts": given.get("nnodes", "1") != "1",
        "--device-ids is not resolved": "device-ids" in given,
        f"--distributed-executor-backend {backend} chooses devices by itself": backend not in ("mp", "uni"),
        f"a worker of rank {highest} runs, but the flags tell of {tensor} rank(s)": highest >= tensor,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _visible(
    environ: Mapping[str, str] | None, devices: Sequence[DeviceIdentity], ranks: int
) -> tuple[list[DeviceIdentity] | None, str]:
    """Return the devices in the engine's own order, None with the reason where that is unknown."""
    ordered, why = _openable(devices)
    if why:
        return None, why
    if environ is None:
        return (ordered, _ASSUMED) if len(ordered) == ranks else (None, "the environment cannot be read")
    platform = ordered[0].platform
    if platform == "amd":
        return visible_to_hip(environ, ordered), ""
    if platform == "nvidia":
        return _cuda(environ, ordered)
    if len(ordered) == ranks == 1:
        return ordered, ""
    return None, f"the devices of platform {platform} are not resolved"


def _openable(devices: Sequence[DeviceIdentity]) -> tuple[list[DeviceIdentity], str]:
    """Return the devices the engine's runtime can open, in its order, or why there is no such order."""
    cards = [device for device in devices if device.platform != "host"]
    platforms = {device.platform for device in cards}
    if len(platforms) > 1:
        return [], f"devices of several platforms: {', '.join(sorted(platforms))}"
    places = [(device.order, device) for device in cards if device.order is not None]
    if not places:
        return [], "no device that the engine's runtime can open"
    if len({order for order, _ in places}) < len(places):
        return [], "several devices share a place in the runtime's order"
    if max(order for order, _ in places) >= len(places):
        # A card that cannot be read has its place all the same: without it every index behind would mean another card.
        return [], "a device before these in the runtime's order is not known"
    return [device for _, device in sorted(places, key=lambda place: place[0])], ""


def _cuda(environ: Mapping[str, str], ordered: list[DeviceIdentity]) -> tuple[list[DeviceIdentity] | None, str]:
    mixed = len({device.model for device in ordered}) > 1
    if mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return None, "cards of several models without CUDA_DEVICE_ORDER=PCI_BUS_ID"
    visible = visible_to_cuda(environ, ordered)
    return visible, "" if visible is not None else "CUDA_VISIBLE_DEVICES names a device twice"
