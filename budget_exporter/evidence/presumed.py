"""
What a log that breaks off lets us presume of a death: for a reader of excerpts, never for one who still listens.

Where the engine named neither phase nor method, the allocator's own account of a failed allocation depends on what the
engine was doing: weights and KV pools are tensors that stay, activations come and go and leave reserved memory behind,
graphs have private pools. A guess is marked as one (``Failure.presumed``).
"""

from __future__ import annotations

from dataclasses import replace

from budget_exporter.evidence.death_watch import DeathWatch
from budget_exporter.evidence.phases import CAUSE_OF_PHASE
from budget_exporter.evidence.statements import Allocation
from budget_exporter.facts.boot import Failure, Phase
from budget_exporter.units import GIB, MIB

__all__ = ["phase_of", "presumed"]

_SLACK = 150 * MIB
"""
Reserved and unused memory that rounding explains: the allocator takes segments of 20 MiB and frees them late.

A run with activations leaves more; weights and KV pools, allocated once and kept, leave less.
"""
_POOL = 3 * GIB // 2
"""One allocation of this size without slack is a KV tensor: pieces of weights are seldom as large on one rank."""
_FILLED = 0.8
"""Share of the device in torch's hands from which on a KV pool must be there: it fills what utilization gives."""
_PIECE = 64 * MIB
"""Activations of the largest batch are not as small as this; pieces of weights are."""


def presumed(watch: DeathWatch, *, served: bool) -> Failure | None:
    """Return the failure of a boot whose log has ended, with what can be presumed where nothing told the cause."""
    known = watch.failure
    if known is None:
        return None if watch.trouble is None else _torn(watch, watch.trouble)
    if known.cause == "runtime_oom" and not served and watch.alone:
        # One request was under way and none is known to have been answered before it.
        return replace(known, cause="first_request_oom", presumed=True)
    if known.cause != "unknown":
        return known
    if watch.by_phase:
        said = watch.allocation or Allocation()
        named = watch.trouble is not None or watch.process is not None
        booting = True if watch.boot_failed else None if named else False
        phase = watch.hint(weak=True) or phase_of(said, booting=booting)
        return known if phase is None else _named(known, phase, watch)
    return known if watch.exception_at is not None or watch.trouble is None else _torn(watch, known)


def _torn(watch: DeathWatch, known: Failure) -> Failure:
    """Name a death whose traceback breaks off before its exception: by the frames that are there, not by the phase."""
    phase = watch.torn_in()
    if phase == "starting":
        # The only thing that request_memory raises.
        return replace(known, phase=phase, cause="budget_above_free", presumed=True)
    # What allocates the pool checks it first, and the check raises as well.
    return known if phase in (None, "allocating_kv") else _named(known, phase, watch)


def _named(known: Failure, phase: Phase, watch: DeathWatch) -> Failure:
    cause = CAUSE_OF_PHASE.get(phase, "unknown")
    if cause == "runtime_oom" and watch.alone:
        cause = "first_request_oom"
    return replace(known, phase=phase if cause != "unknown" else known.phase, cause=cause, presumed=cause != "unknown")


def phase_of(said: Allocation, *, booting: bool | None) -> Phase | None:
    """
    Return the phase in which torch most likely failed as ``said``.

    ``booting`` tells whether the engine cannot have been serving, None where one of its processes said that it failed:
    it says the same when it boots and when it runs, and one that runs says more of it.
    """
    running: Phase | None = None if booting is None else "warming_up" if booting else "serving"
    if said.tried is not None and said.total is not None and said.tried > said.total:
        # Larger than the device: an activation of the largest input, which the profile run is the first to run.
        return "profiling"
    if said.pools:
        return running
    if said.tried is None or said.total is None or said.allocated is None or said.slack is None:
        return None
    if said.slack < _SLACK:
        # A pool is planned to fit beside the weights: what does not fit the device with them is not of it.
        fits = said.allocated + said.tried <= said.total
        return "allocating_kv" if said.tried >= _POOL and fits else "loading"
    if said.allocated >= _FILLED * said.total:
        return running
    return "loading" if said.tried < _PIECE else "profiling"
