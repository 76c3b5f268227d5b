"""What the configuration excludes is neither watched nor shown, whatever it was called before."""

from __future__ import annotations

from budget_exporter.config import Config, EngineConfig, Match
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.sidecar.fleet import Fleet, Running
from budget_exporter.state import EngineMemory


def running(pid: int, *, unit: str | None = None, model: str | None = None, port: int | None = None) -> Running:
    main = ProcessKey(pid, pid, "b")
    sighting = EngineSighting(source="procfs", main=main, started_at=100.0, argv=(), environ={}, unit=unit)
    return Running(sighting, Shape(model=model, port=port))


def excluding(match: Match, *others: EngineConfig) -> Config:
    return Config(engines=(EngineConfig(name="scratch", match=match, exclude=True), *others))


def test_an_excluded_engine_is_not_there_and_the_others_are() -> None:
    for match, spared in [
        (Match(port=9000), running(1, model="m", port=9000)),
        (Match(unit="a.service"), running(1, unit="a.service", port=9000)),
        (Match(served_model_name="m"), running(1, model="m")),
    ]:
        fleet = Fleet(excluding(match), {})
        assert fleet.engines == {}
        assert fleet.observe([spared, running(2, model="other", port=1)], 101.0) == ["other"]
        assert set(fleet.engines) == {"other"}


def test_its_name_is_free_for_another() -> None:
    fleet = Fleet(excluding(Match(port=9000)), {})
    fleet.observe([running(1, model="m", port=9000), running(2, model="m", port=8000)], 101.0)
    assert {name: engine.main and engine.main.pid for name, engine in fleet.engines.items()} == {"m": 2}


def test_what_a_reload_excludes_is_gone_at_once_and_back_when_it_no_longer_does() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m", port=9000)], 101.0)
    fleet.configure(excluding(Match(port=9000)))
    assert fleet.observe([running(1, model="m", port=9000)], 102.0) == []
    assert fleet.engines == {}
    fleet.configure(Config())
    assert fleet.observe([running(1, model="m", port=9000)], 103.0) == ["m"]
    assert fleet.engines["m"].restarts.total == 0


def test_an_entry_that_becomes_an_exclusion_takes_its_engine_along_though_it_is_down() -> None:
    match = Match(port=9000)
    fleet = Fleet(Config(engines=(EngineConfig(name="scratch", match=match),)), {})
    fleet.observe([running(1, port=9000)], 101.0)
    fleet.observe([], 102.0)
    assert set(fleet.engines) == {"scratch"}
    fleet.configure(excluding(match))
    assert fleet.engines == {}


def test_what_is_remembered_of_an_excluded_engine_is_not_recalled() -> None:
    memory = EngineMemory(main=ProcessKey(1, 10, "b"), started_at=50.0, last_seen=60.0)
    fleet = Fleet(excluding(Match(port=9000)), {"scratch": memory, "m": memory})
    assert set(fleet.engines) == {"m"}


def test_an_exclusion_by_model_spares_a_configured_engine_of_another() -> None:
    config = excluding(Match(served_model_name="m"), EngineConfig(name="prod", match=Match(port=8000)))
    fleet = Fleet(config, {})
    fleet.observe([running(1, model="m", port=8001), running(2, model="n", port=8000)], 101.0)
    assert fleet.engines["prod"].up
    assert set(fleet.engines) == {"prod"}
