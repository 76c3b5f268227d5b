"""Tell which device each rank of an engine runs on, or that it cannot be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from budget_exporter.engines._device_ids import picked
from budget_exporter.engines._held import ranks_by_memory, settle
from budget_exporter.engines._placed_on_host import place_on_host, runs_on_cpu
from budget_exporter.engines._ranks import local_ranks, rank_name, stray
from budget_exporter.engines._visible import Hidden, Visible, in_order
from budget_exporter.engines._visible_amd import visible_to_hip
from budget_exporter.engines._visible_nvidia import visible_to_cuda
from budget_exporter.engines._visible_others import visible_to_gaudi, visible_to_neuron, visible_to_tpu
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape, Worker

__all__ = ["place", "rank_name", "ranks_by_memory"]

_UNREADABLE = "assumed: the environment cannot be read, but there are as many devices as ranks"


def place(
    shape: Shape,
    environ: Mapping[str, str] | None,
    workers: Sequence[Worker],
    devices: Sequence[DeviceIdentity],
    report: BootReport | None = None,
    told: Mapping[str, str] | None = None,
    *,
    contained: bool = False,
) -> tuple[Placement, ...]:
    """
    Return one placement a rank of this host: ``0``, ``1``, … and ``d0.0``, ``d1.0``, … with data parallelism.

    ``environ`` is the main process's, None where it may not be read; ``devices`` are all of the host, of which those
    without ``order`` cannot be opened by the engine; ``contained`` says that it runs in a container, which may have
    some of them only. ``told`` is the device of ranks whose processes show it (``ranks_by_memory``): it goes before
    what the environment says. A worker's device is its local rank's place in the list of visible devices (vLLM 0.8.5
    to 0.32, ``v1/worker/gpu_worker.py``). Where that is not all there is to it, the device is None and ``why`` says
    so, and ``among`` from which devices each rank has one; where it rests on something that is not certain ``why``
    begins with ``assumed``. More than 1024 ranks are none. The host's memory is the device of engines on the CPU only,
    and ``report`` tells which those are.
    """
    ranks = local_ranks(shape)
    if runs_on_cpu(shape, report):
        return place_on_host([rank.name for rank in ranks], shape, environ, devices, report)
    cards = [device for device in devices if device.platform != "host"]
    why = _unresolved(shape, workers)
    seen = why or _seen(shape, environ, cards, len(ranks), contained=contained)
    known = {rank: device for rank, device in (told or {}).items() if any(card.device == device for card in cards)}
    whole = {card.device for card in cards if card.partitions == 1}
    return settle([_placement(rank.name, rank.at, seen) for rank in ranks], known, whole)


def _placement(name: str, at: int, seen: Visible | Hidden | str) -> Placement:
    if isinstance(seen, str):
        return Placement(name, None, seen)
    if isinstance(seen, Hidden):
        return Placement(name, None, seen.why, among=tuple(sorted(device.device for device in seen.among)))
    if at >= len(seen.devices):
        beyond = f" ({seen.beyond})" if seen.beyond else ""
        return Placement(name, None, f"rank above the {len(seen.devices)} device(s) the engine sees{beyond}")
    device = seen.devices[at]
    if device is None:
        return Placement(name, None, "the device that the engine's list has for it is not known")
    return Placement(name, device.device, seen.assumed)


def _unresolved(shape: Shape, workers: Sequence[Worker]) -> str:
    """Return what keeps ranks from simply following the visible list, nothing where nothing does."""
    given = shape.given
    backend = given.get("distributed-executor-backend", "mp")
    title = stray(shape, workers)
    reasons = {
        "the engine runs on several hosts": given.get("nnodes", "1") != "1",
        f"--distributed-executor-backend {backend} chooses devices by itself": backend not in ("mp", "uni"),
        "--data-parallel-backend ray chooses devices by itself": given.get("data-parallel-backend", "mp") == "ray",
        f"{title} runs, of which the flags do not tell": bool(title),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _seen(
    shape: Shape, environ: Mapping[str, str] | None, cards: Sequence[DeviceIdentity], ranks: int, *, contained: bool
) -> Visible | Hidden | str:
    """Return the devices in the engine's own order, or the reason why that is unknown."""
    platforms = {card.platform for card in cards}
    if len(platforms) > 1:
        return f"devices of several platforms: {', '.join(sorted(platforms))}"
    if not cards:
        return "no device that the engine's runtime can open"
    platform, ids = cards[0].platform, shape.given.get("device-ids", "")
    if environ is None:
        return (
            _assumed(cards, ranks) if not ids else "--device-ids counts what the environment leaves, which is unknown"
        )
    visible = _visible(platform, environ, cards, ranks, contained=contained)
    return visible if not isinstance(visible, Visible) or not ids else picked(ids, visible, environ, cards, platform)


def _visible(
    platform: str, environ: Mapping[str, str], cards: Sequence[DeviceIdentity], ranks: int, *, contained: bool
) -> Visible | Hidden | str:
    if platform == "amd":
        return visible_to_hip(environ, cards, ranks, contained=contained)
    if platform == "nvidia":
        return visible_to_cuda(environ, cards, ranks, contained=contained)
    others = {"gaudi": visible_to_gaudi, "neuron": visible_to_neuron, "tpu": visible_to_tpu}
    if platform in others:
        return others[platform](environ, cards, ranks)
    return f"the devices of platform {platform} are not resolved"


def _assumed(cards: Sequence[DeviceIdentity], ranks: int) -> Visible | str:
    ordered = in_order(cards)
    if isinstance(ordered, str):
        return ordered
    return Visible(tuple(ordered), _UNREADABLE) if len(ordered) == ranks else "the environment cannot be read"
