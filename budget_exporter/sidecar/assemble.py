"""Put one engine together: what runs, what it said, what its device holds, what the law makes of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from budget_exporter import budget, registries, verdicts
from budget_exporter.budget import choose
from budget_exporter.config import Config
from budget_exporter.engines.placement import place as place_ranks
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Phase
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.endpoint import disagreements, heard
from budget_exporter.facts.engine import Placement, Supervision, SupervisorName
from budget_exporter.facts.ledger import Ledger, RankInput, RegistryEntry
from budget_exporter.facts.snapshot import DeviceState, EngineState, FreeAtInit
from budget_exporter.facts.verdict import Measured, Verdict
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.follower import Reading, Resumed
from budget_exporter.sidecar.inputs import rank_inputs
from budget_exporter.sidecar.owners import Held
from budget_exporter.sidecar.past import Trends, mark, past_of

__all__ = ["associate", "engine_state", "place"]

START_SLACK = 2.0
"""Seconds by which a boot may seem to begin before its process: procfs and file systems count in coarse steps."""


DEVICE_TYPES = {"amd": "cuda", "nvidia": "cuda", "gaudi": "hpu", "neuron": "neuron", "tpu": "tpu", "host": "cpu"}
"""What an engine says it runs on (``device_config``, in torch's words) by the platform of the device."""


def place(
    engine: Engine, devices: Sequence[DeviceIdentity], told: Mapping[str, str] | None = None
) -> tuple[Placement, ...]:
    """
    Return where the engine's ranks run, by its last known flags and processes.

    ``told`` is the device of ranks whose processes showed it. What the engine says it runs on rules out devices of any
    other kind: one on the CPU sits on no card.
    """
    if engine.last is None:
        return ()
    sighting, shape = engine.last.sighting, engine.last.shape
    said = engine.report.device_type if engine.report else None
    possible = [device for device in devices if said is None or DEVICE_TYPES.get(device.platform) in (said, "cpu")]
    contained = sighting.container is not None or sighting.inner_pid not in (None, sighting.main.pid)
    return place_ranks(shape, sighting.environ, sighting.workers, possible, engine.report, told, contained=contained)


def associate(engine: Engine, reading: Reading | None, resumed: Resumed | None) -> bool:
    """
    Give ``engine`` the newest boot of its log where that is its present main process's; return whether it is.

    A log goes on over restarts, so a boot counts only if it began after the process did, and where its lines name a PID
    it must be the engine's own, on the host or inside its container.
    """
    if reading is None or engine.main is None or engine.started_at is None:
        return False
    if reading.boots == 0:
        own = resumed is not None and resumed.report is not None and resumed.main == engine.main
    else:
        pids = {None, engine.main.pid, engine.last.sighting.inner_pid if engine.last else None}
        own = (
            reading.main_pid in pids and reading.began is not None and reading.began >= engine.started_at - START_SLACK
        )
    if own:
        engine.report = reading.report
    return own


def engine_state(
    engine: Engine,
    config: Config,
    registry: Sequence[RegistryEntry],
    devices: Mapping[str, DeviceState],
    placements: tuple[Placement, ...],
    supervision: Supervision | None,
    phase: tuple[Phase, float | None],
    now: float,
    *,
    held: Held,
    trends: Trends,
) -> EngineState:
    """Return everything published of one engine."""
    policy = config.policy(engine.config)
    told = engine.endpoint.facts if engine.endpoint else None
    report, shape = heard(engine.report, told), engine.last.shape if engine.last else None
    on = {p.rank: devices[p.device] for p in placements if p.device is not None and p.device in devices}
    free = _free_at_init(engine, report, placements)
    limit = held.container_limit
    measured = {
        rank: Measured(state.memory.size, state.memory.used, state.high_water.used)
        for rank, state in on.items()
        # What is left of the node is not what is left to a container that may not have all of it.
        if limit is None or limit >= state.memory.size
    }

    # What is free of a host's memory goes up and down with all that runs there: a fall from one start to the next tells
    # nothing.
    on_cards = {r: figure for r, figure in free.items() if r not in on or not on[r].identity.of_everybody}
    mark(engine, report, shape, on_cards, phase[0])
    trends.note(engine, held, on, phase[0], now)
    past = past_of(engine, trends, held, on, phase, now)

    def judge(ledger: Ledger | None) -> Verdict:
        seen = measured if engine.running else {}
        return verdicts.judge(
            ledger=ledger,
            report=report,
            shape=shape,
            phase=phase[0],
            measured=seen,
            policy=policy,
            past=past,
            endpoint=told,
        )

    ledger, verdict, trouble = None, Verdict(), ""
    try:
        try:
            inputs = rank_inputs(placements, devices, free, limit)
            ledger = _ledger(engine, registry, inputs, report)
        except LawError as error:
            trouble = f"no budget: {error}"
        verdict = judge(ledger)
    except Exception as error:  # flags and lines of one engine must not cost the others their figures
        logging.getLogger("budget_exporter").debug("no budget for %s", engine.name, exc_info=True)
        ledger, trouble = None, f"no budget: {type(error).__name__}: {error}"
    engine.trouble.note(trouble)
    return EngineState(
        name=engine.name,
        expected=engine.config.expected_at(now) if engine.config else True,
        up=engine.up,
        supervisor=_supervisor(engine, supervision),
        unit=engine.unit or "",
        phase=phase[0],
        phase_since=phase[1],
        restarts=engine.restarts.total,
        failures=dict(engine.deaths.counts),
        floors=policy.floors,
        sighting=engine.last.sighting if engine.last else None,
        shape=shape,
        placements=placements,
        supervision=supervision,
        report=report,
        free_at_init=free,
        ledger=ledger,
        verdict=verdict,
        last_failure=engine.deaths.last,
        endpoint=engine.endpoint,
        disagreements=disagreements(engine.report, told),
        rank_memory=held.ranks,
        runtime=held.runtime,
        leftover=held.leftover,
        pending=engine.pending,
    )


def _supervisor(engine: Engine, supervision: Supervision | None) -> SupervisorName:
    if supervision is not None:
        return supervision.supervisor
    if engine.last is not None:
        return engine.last.sighting.supervisor
    return "systemd" if engine.unit else "none"


def _free_at_init(engine: Engine, report: BootReport | None, placements: Sequence[Placement]) -> dict[str, FreeAtInit]:
    """Return free memory at init by rank: the engine's own word where it printed one, else what we measured."""
    result = dict(engine.free_at_init)
    for rank in (p.rank for p in placements):
        printed = report.of(int(rank)).free_at_init if report and rank.isdecimal() else None
        if printed is not None:
            result[rank] = FreeAtInit(printed.bytes, printed.rounding, "log")
    return result


def _ledger(
    engine: Engine,
    registry: Sequence[RegistryEntry],
    inputs: Sequence[RankInput],
    report: BootReport | None,
) -> Ledger | None:
    if engine.last is None or not inputs:
        return None
    shape = engine.last.shape
    constants = choose.constants_for(registry, shape, report)
    if engine.config is not None:
        constants = registries.override(constants, engine.config.constants)
    return budget.compute(shape, inputs, report, constants, engine.last.sighting.model_files)
