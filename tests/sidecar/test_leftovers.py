"""Whose a process was, once its engine ended, and when it is left behind for good."""

from __future__ import annotations

from budget_exporter.facts.device import Holders, ProcessMemory
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.facts.ownership import Known, Owner
from budget_exporter.sidecar.fleet import Engine, Running
from budget_exporter.sidecar.leftovers import LASTS, Leftovers
from budget_exporter.state import EngineMemory

CARD = "0000:03:00.0"
WORKER = 11


def engine(name: str = "qwen", main: ProcessKey | None = None) -> Engine:
    key = main or ProcessKey(10, 1, "this boot")
    made = Engine(name, None)
    made.running = made.last = Running(EngineSighting("procfs", key, 0.0, ("vllm", "serve"), {}), Shape())
    made.main = key
    return made


def listed(at: float) -> dict[str, Holders]:
    return {CARD: Holders(CARD, at, (ProcessMemory(WORKER, 5, name="worker"),), complete=True)}


def test_a_worker_that_ends_a_moment_after_its_engine_is_not_left_behind_for_good() -> None:
    it, leftovers = engine(), Leftovers({})
    leftovers.take(listed(100.0), {WORKER: Owner("qwen")}, [it], 100.0)
    assert not leftovers.lasts(WORKER, 100.0)
    it.running, it.looked = None, True
    owners = leftovers.take(listed(100.0), {}, [it], 101.0)
    assert owners == {WORKER: Owner("qwen", ended=True)}
    # However long ago that is by now: the list is from before its end.
    assert not leftovers.lasts(WORKER, 100.0)
    leftovers.take(listed(105.0), {}, [it], 105.0)
    assert not leftovers.lasts(WORKER, 105.0)
    leftovers.take(listed(101.0 + LASTS), {}, [it], 106.0)
    assert leftovers.lasts(WORKER, 101.0 + LASTS)


def test_a_worker_that_was_missed_for_a_moment_is_left_behind_anew() -> None:
    it, leftovers = engine(), Leftovers({})
    for now in range(100, 120):
        missed = now % 5 == 0
        leftovers.take(listed(now), {} if missed else {WORKER: Owner("qwen")}, [it], float(now))
        assert not leftovers.lasts(WORKER, float(now))


def test_after_the_exporter_s_start_it_counts_from_when_the_engine_was_last_seen() -> None:
    memory = EngineMemory(
        main=ProcessKey(10, 1, "this boot"), last_seen=100.0, processes={WORKER: Known("worker", (CARD,))}
    )
    it, leftovers = engine(), Leftovers({"qwen": memory})
    it.running, it.looked = None, True
    leftovers.take(listed(160.0), {}, [it], 160.0)
    assert leftovers.lasts(WORKER, 160.0)


def test_an_engine_that_only_its_daemon_knows_makes_nobody_s_worker_a_stranger() -> None:
    """Of such an engine no boot of the host is known, so that it tells nothing of whose PIDs these are."""
    it, leftovers = engine(), Leftovers({})
    hidden = engine("hidden", ProcessKey(0, 1, "container id"))
    leftovers.take(listed(100.0), {WORKER: Owner("qwen")}, [it, hidden], 100.0)
    it.running, it.looked = None, True
    assert leftovers.take(listed(101.0), {}, [it, hidden], 101.0) == {WORKER: Owner("qwen", ended=True)}
