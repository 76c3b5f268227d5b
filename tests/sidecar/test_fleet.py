"""Engines keep their names and their counts through restarts, rolling updates and our own absence."""

from __future__ import annotations

from dataclasses import replace

from budget_exporter.config import Config, EngineConfig, Match
from budget_exporter.facts.boot import Failure
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape, Supervision
from budget_exporter.sidecar.fleet import FORGET_AFTER, FRESH, GONE_AFTER, Fleet, Running
from budget_exporter.state import EngineMemory


def running(
    pid: int,
    ticks: int = 0,
    *,
    unit: str | None = None,
    container: str | None = None,
    model: str | None = None,
    port: int | None = None,
    started: float = 100.0,
) -> Running:
    sighting = EngineSighting(
        source="procfs",
        main=ProcessKey(pid, ticks or pid, "b"),
        started_at=started,
        argv=(),
        environ={},
        unit=unit,
        container=container,
        container_socket="/run/docker.sock" if container else None,
    )
    return Running(sighting, Shape(model=model, port=port))


def test_names_come_from_unit_container_model_port_in_that_order() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe(
        [
            running(1, unit="vllm-qwen.service", container="c1"),
            running(2, container="c2", model="org/model"),
            running(3, model="org/model"),
            running(4, model="/srv/models/glm/"),
            running(5, port=8005),
            running(6),
        ],
        101.0,
    )
    assert set(fleet.engines) == {"vllm-qwen", "c2", "org/model", "glm", "8005", "8000"}


def test_a_second_holder_of_a_name_gets_its_port_and_the_first_keeps_the_name() -> None:
    fleet = Fleet(Config(), {})
    first, second = running(1, model="m", port=8001), running(2, model="m", port=8002, started=50.0)
    fleet.observe([first], 101.0)
    fleet.observe([second, first], 102.0)
    assert fleet.engines["m"].main == first.sighting.main
    assert fleet.engines["m@8002"].main == second.sighting.main


def test_two_found_at_once_are_named_by_age() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(2, model="m", port=8002, started=90.0), running(1, model="m", port=8001)], 101.0)
    assert fleet.engines["m"].started_at == 90.0
    assert "m@8001" in fleet.engines


def test_a_configured_engine_exists_before_it_runs_and_is_recognised() -> None:
    config = Config(engines=(EngineConfig(name="prod", match=Match(port=8001)), EngineConfig(name="glm")))
    fleet = Fleet(config, {})
    assert fleet.engines["prod"].running is None
    fleet.observe([running(1, model="m", port=8001), running(2, model="glm", port=9)], 101.0)
    assert {name: engine.main and engine.main.pid for name, engine in fleet.engines.items()} == {"prod": 1, "glm": 2}
    assert fleet.engines["glm"].config is config.engines[1]


def test_a_new_main_process_is_a_restart_and_a_reused_pid_is_too() -> None:
    fleet = Fleet(Config(), {})
    assert fleet.observe([running(1, 10, model="m")], 101.0) == ["m"]
    assert fleet.observe([running(1, 10, model="m")], 102.0) == []
    assert fleet.engines["m"].restarts.total == 0
    fleet.observe([], 103.0)
    assert fleet.observe([running(1, 11, model="m", started=103.5)], 104.0) == ["m"]
    assert fleet.engines["m"].restarts.total == 1
    assert fleet.engines["m"].witnessed


def test_a_start_long_ago_was_not_witnessed() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m", started=100.0)], 100.0 + FRESH + 0.1)
    assert not fleet.engines["m"].witnessed


def test_an_engine_that_is_gone_is_remembered_for_an_hour_and_a_configured_one_for_ever() -> None:
    fleet = Fleet(Config(engines=(EngineConfig(name="kept", match=Match(port=1)),)), {})
    fleet.observe([running(1, model="m"), running(2, port=1)], 101.0)
    fleet.observe([], 102.0)
    assert fleet.engines["m"].running is None
    fleet.observe([], 102.0 + FORGET_AFTER)
    assert "m" in fleet.engines
    fleet.observe([], 103.0 + FORGET_AFTER)
    assert set(fleet.engines) == {"kept"}


def test_a_restart_while_we_were_down_counts_and_the_same_process_does_not() -> None:
    memory = EngineMemory(
        main=ProcessKey(1, 10, "b"), started_at=50.0, last_seen=60.0, restarts=2, nrestarts=5, unit="m.service"
    )
    same = Fleet(Config(), {"m": memory})
    assert same.observe([running(1, 10, model="m")], 101.0) == []
    assert same.engines["m"].restarts.total == 2
    other = Fleet(Config(), {"m": memory})
    other.observe([running(7, 70, model="m")], 101.0)
    other.supervised(other.engines["m"], Supervision("systemd", "m.service", "active", 8), 101.5, troubled=False)
    assert other.engines["m"].restarts.total == 5


def test_what_is_remembered_comes_back() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, 10, model="m")], 101.0)
    fleet.engines["m"].deaths.tell(Failure(101.5, "capturing", "graph_capture_oom"), present=True)
    memory = fleet.memories({"m": ("/log", "c:1")})["m"]
    assert memory.cursor == "c:1"
    again = Fleet(Config(), {"m": memory})
    again.observe([running(1, 10, model="m")], 110.0)
    assert again.engines["m"].deaths.counts["graph_capture_oom"] == 1
    assert again.engines["m"].deaths.last == fleet.engines["m"].deaths.last
    assert again.memories({})["m"] == replace(memory, last_seen=110.0)


def dead(fleet: Fleet, state: str, later: float) -> Fleet:
    fleet.observe([running(1, 10, model="m", unit="m.service")], 101.0)
    fleet.observe([], 102.0)
    word = Supervision("systemd", "m.service", state, 0)  # type: ignore[arg-type]
    for now in (102.5, 102.0 + later):  # it is asked every second
        fleet.supervised(fleet.engines["m"], word, now, troubled=False)
    return fleet


def test_a_death_without_a_line_is_counted_by_the_supervisors_word_once_the_log_had_its_time() -> None:
    fleet = dead(Fleet(Config(), {}), "failed", FRESH - 0.1)
    assert fleet.engines["m"].deaths.counts["unknown"] == 0
    fleet = dead(Fleet(Config(), {}), "failed", FRESH + 0.1)
    assert fleet.engines["m"].deaths.counts["unknown"] == 1
    fleet.supervised(fleet.engines["m"], Supervision("systemd", "m.service", "failed", 0), 130.0, troubled=False)
    assert fleet.engines["m"].deaths.counts["unknown"] == 1


def test_a_planned_stop_is_no_failure() -> None:
    fleet = dead(Fleet(Config(), {}), "inactive", FRESH + 0.1)
    assert sum(fleet.engines["m"].deaths.counts.values()) == 0


def test_a_planned_stop_that_does_not_end_well_is_none_either() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, 10, model="m", unit="m.service")], 101.0)
    fleet.observe([], 102.0)
    word = Supervision("systemd", "m.service", "failed", 0, exit_code=137, result="timeout", asked=True)
    for now in (102.5, 110.0):
        fleet.supervised(fleet.engines["m"], word, now, troubled=False)
    assert sum(fleet.engines["m"].deaths.counts.values()) == 0


def test_a_server_that_ends_well_after_its_core_died_has_died_of_what_it_worked_at() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, 10, model="m", unit="m.service")], 101.0)
    it = fleet.engines["m"]
    it.shown, it.worked = "failing", "serving"
    fleet.observe([], 102.0)
    word = Supervision("systemd", "m.service", "inactive", 0, exit_code=0, result="success", asked=False)
    for now in (102.5, 110.0):
        fleet.supervised(it, word, now, troubled=False)
    assert it.deaths.last == Failure(102.0, "serving", "unknown")
    assert it.deaths.counts["unknown"] == 1
    fleet.observe([running(2, 20, model="m", unit="m.service")], 111.0)
    assert (it.shown, it.worked) == ("unknown", "unknown")


def test_a_death_that_a_line_explained_is_counted_once() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, 10, model="m", unit="m.service")], 101.0)
    fleet.engines["m"].deaths.tell(Failure(101.9, "loading", "budget_above_free"), present=True)
    fleet.observe([], 102.0)
    fleet.supervised(fleet.engines["m"], Supervision("systemd", "m.service", "auto_restart", 1), 110.0, troubled=False)
    assert sum(fleet.engines["m"].deaths.counts.values()) == 1


def test_a_reload_gives_engines_their_new_entries() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m")], 101.0)
    fleet.configure(Config(engines=(EngineConfig(name="m", contract_tokens=5), EngineConfig(name="new"))))
    assert fleet.engines["m"].config is not None
    assert fleet.engines["m"].running is not None
    assert fleet.engines["new"].running is None


def test_three_that_would_have_one_name_and_port_are_three() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(n, model="m", started=float(n)) for n in (1, 2, 3)], 101.0)
    assert {name: engine.main and engine.main.pid for name, engine in fleet.engines.items()} == {
        "m": 1, "m@8000": 2, "m@8000.2": 3,
    }  # fmt: skip


def test_two_servers_of_one_unit_keep_their_names_when_both_start_again() -> None:
    """Whichever of them comes first: the port tells which is which."""
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, unit="u.service", port=8000), running(2, unit="u.service", port=8001)], 101.0)
    fleet.observe([], 102.0)
    fleet.observe(
        [
            running(3, unit="u.service", port=8001, started=103.0),
            running(4, unit="u.service", port=8000, started=103.5),
        ],
        104.0,
    )
    assert fleet.engines["u"].main == ProcessKey(4, 4, "b")
    assert fleet.engines["u@8001"].main == ProcessKey(3, 3, "b")


def test_a_second_holder_that_starts_again_is_not_taken_for_the_first_that_is_gone() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m", port=8001), running(2, model="m", port=8002)], 101.0)
    fleet.observe([], 102.0)
    fleet.observe([running(3, model="m", port=8002)], 103.0)
    assert fleet.engines["m@8002"].restarts.total == 1
    assert fleet.engines["m"].up is False


def test_an_unseen_engine_is_neither_up_nor_down_and_is_not_forgotten() -> None:
    fleet = Fleet(Config(), {"m": EngineMemory(main=ProcessKey(1, 10, "b"), last_seen=50.0, restarts=3)})
    fleet.observe([], 50.0 + 10 * FORGET_AFTER, complete=False)
    unseen = [engine.up for engine in fleet.engines.values()]
    fleet.observe([running(1, 10, model="m")], 50.0 + 10 * FORGET_AFTER)
    assert (unseen, fleet.engines["m"].up, fleet.engines["m"].restarts.total) == ([None], True, 3)


def test_an_engine_is_forgotten_with_its_unit_but_not_while_its_unit_was_never_known() -> None:
    for counter, kept in ((0, False), (None, True)):
        fleet = Fleet(Config(), {})
        fleet.observe([running(1, unit="m.service")], 101.0)
        word = Supervision("systemd", "m.service", "active", counter)
        fleet.supervised(fleet.engines["m"], word, 101.0, troubled=False)
        fleet.observe([], 102.0)
        gone = Supervision("systemd", "m.service", "inactive", None)
        fleet.supervised(fleet.engines["m"], gone, 102.0, troubled=False)
        fleet.observe([], 102.0 + GONE_AFTER)
        assert "m" in fleet.engines
        fleet.observe([], 103.0 + GONE_AFTER)
        assert ("m" in fleet.engines) is kept


def test_an_engine_that_the_state_knows_by_another_name_takes_the_configured_one_with_its_counts() -> None:
    memory = EngineMemory(main=ProcessKey(1, 10, "b"), started_at=50.0, last_seen=60.0, restarts=4)
    config = Config(engines=(EngineConfig(name="prod", match=Match(port=8000)),))
    fleet = Fleet(config, {"m": memory})
    fleet.observe([running(1, 10, model="m")], 101.0)
    assert [(e.name, e.up, e.restarts.total) for e in fleet.engines.values()] == [("prod", True, 4)]


def test_an_engine_of_a_configured_name_with_a_past_goes_on_as_that() -> None:
    past = EngineMemory(main=ProcessKey(9, 9, "b"), last_seen=60.0, restarts=4)
    known = EngineMemory(main=ProcessKey(1, 10, "b"), started_at=50.0, last_seen=60.0)
    config = Config(engines=(EngineConfig(name="prod", match=Match(port=8000)),))
    fleet = Fleet(config, {"prod": past, "m": known})
    fleet.observe([running(1, 10, model="m")], 101.0)
    assert [(e.name, e.up, e.restarts.total) for e in fleet.engines.values()] == [("prod", True, 5)]


def test_what_a_fast_restart_left_no_time_to_free_is_not_measured() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m")], 101.0)
    fleet.observe([running(2, model="m", started=101.5)], 102.0)
    assert fleet.engines["m"].vacant_since == 102.0
    fleet.observe([], 110.0)
    fleet.observe([running(3, model="m", started=115.0)], 115.5)
    assert fleet.engines["m"].vacant_since == 110.0


def test_a_container_that_is_created_anew_is_the_same_engine() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, container="c")], 101.0)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "active", 0), 101.0, troubled=False)
    fleet.observe([], 110.0)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "inactive", None), 110.0, troubled=False)
    fleet.observe([running(2, container="c", started=150.0)], 150.0)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "active", 0), 150.0, troubled=False)
    fleet.observe([running(2, container="c", started=150.0)], 300.0)
    assert [(e.name, e.up, e.restarts.total, sum(e.deaths.counts.values())) for e in fleet.engines.values()] == [
        ("c", True, 1, 0)
    ]


def test_a_unit_that_comes_again_while_its_engine_is_down_is_not_gone() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, container="c")], 101.0)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "active", 0), 101.0, troubled=False)
    fleet.observe([], 102.0)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "inactive", None), 102.0, troubled=False)
    fleet.supervised(fleet.engines["c"], Supervision("docker", "c", "inactive", 0), 110.0, troubled=False)
    fleet.observe([], 102.0 + 2 * GONE_AFTER)
    assert fleet.engines["c"].up is False


def test_a_container_s_name_that_is_told_late_is_taken_with_all_that_is_known() -> None:
    fleet = Fleet(Config(), {})
    fleet.observe([running(1, model="m")], 101.0)
    fleet.observe([running(2, model="m", started=102.0)], 103.0)
    fleet.observe([running(2, container="c", model="m", started=102.0)], 104.0)
    assert [(e.name, e.up, e.restarts.total) for e in fleet.engines.values()] == [("c", True, 1)]


def test_a_late_name_that_has_a_past_goes_on_as_that_and_one_that_runs_keeps_its_own() -> None:
    fleet = Fleet(Config(), {"c": EngineMemory(main=ProcessKey(9, 9, "b"), last_seen=60.0, restarts=4)})
    fleet.observe([running(1, model="m")], 101.0)
    fleet.observe([running(1, container="c", model="m")], 102.0)
    assert [(e.name, e.restarts.total) for e in fleet.engines.values()] == [("c", 5)]
    fleet.observe([running(1, container="c", model="m"), running(2, model="m")], 103.0)
    fleet.observe([running(1, container="c", model="m"), running(2, container="c", model="m")], 104.0)
    assert set(fleet.engines) == {"c", "m"}


def test_a_late_name_that_a_configured_engine_has_is_not_taken() -> None:
    config = Config(engines=(EngineConfig(name="c", match=Match(port=9)),))
    fleet = Fleet(config, {})
    fleet.observe([running(1, model="m")], 101.0)
    fleet.observe([running(1, container="c", model="m")], 102.0)
    assert {name: engine.up for name, engine in fleet.engines.items()} == {"c": False, "m": True}
