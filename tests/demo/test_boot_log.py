from __future__ import annotations

import pytest

from budget_exporter.demo import boot_log
from budget_exporter.demo.boot_log import Boot, Pids
from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import Phase
from budget_exporter.units import printed_bytes

PIDS = Pids(11, 12, (30, 31))
NOW = 1770200000.0


def play(reader: BootReader, lines: list[tuple[Phase, str]]) -> None:
    """Feed line after line; the reader is in the phase each line is labelled with."""
    for phase, line in lines:
        reader.feed([Record(line.encode())])
        assert reader.report().phase == phase, line


@pytest.mark.parametrize(
    ("shape", "graphs", "arena", "slots"),
    [
        (boot_log.SHAPE_E, "0.55", "17.22", 7522),
        (boot_log.SHAPE_F, "0.32", "17.52", 7653),
        (boot_log.SHAPE_G, "0.07", "17.77", 7762),
    ],
)
def test_the_measured_shapes_print_their_measured_plan(shape: Boot, graphs: str, arena: str, slots: int) -> None:
    reader = BootReader(clock=lambda: NOW)
    play(reader, boot_log.boot(PIDS, shape, NOW))

    plan = reader.report().of(0).plan
    assert plan is not None
    assert plan.cuda_graphs is not None
    assert plan.arena is not None
    assert (plan.cuda_graphs.bytes, plan.arena.bytes, plan.slots) == (
        printed_bytes(graphs),
        printed_bytes(arena),
        slots,
    )


def test_a_healthy_boot_says_what_shape_g_said() -> None:
    reader = BootReader(clock=lambda: NOW)
    play(reader, boot_log.healthy(PIDS, NOW))
    report = reader.report()

    assert (report.version, report.release, report.phase) == ("0.28.0", "28.04.9", "serving")
    assert (report.kv_tokens, report.kv_concurrency, report.max_model_len) == (401408, 2.0, 200704)
    captures = [facts.graph_capture and facts.graph_capture.bytes for facts in report.ranks.values()]
    assert captures == [printed_bytes("-0.06"), printed_bytes("0.05")]
    free = [facts.free_at_init and facts.free_at_init.bytes for facts in report.ranks.values()]
    assert free == [printed_bytes("31.29")] * 2
    assert report.of(1).kv_bytes_per_token_measured == 7888
    assert report.args["kv_cache_memory_bytes"] == "3166500000"
    assert (report.failure, report.unparsed, reader.boots, reader.main_pid) == (None, 0, 1, 11)


def test_the_knife_edge_serves_and_its_first_request_kills_it() -> None:
    reader = BootReader(clock=lambda: NOW)
    play(reader, boot_log.knife_edge(PIDS, NOW))
    assert (reader.report().kv_tokens, reader.report().kv_concurrency) == (1350182, 5.15)

    for _, line in boot_log.first_request_oom(PIDS, NOW):
        reader.feed([Record(line.encode())])

    (failure,) = reader.take_failures()
    assert (failure.cause, failure.rank) == ("first_request_oom", 0)
    assert failure.tried is not None
    assert failure.free is not None
    assert (failure.tried.bytes, failure.free.bytes) == (50 << 20, 0)


def test_after_an_answered_request_the_same_oom_is_one_of_running() -> None:
    reader = BootReader(clock=lambda: NOW)
    play(reader, [*boot_log.knife_edge(PIDS, NOW), *boot_log.request(PIDS)])
    for _, line in boot_log.first_request_oom(PIDS, NOW):
        reader.feed([Record(line.encode())])

    assert [failure.cause for failure in reader.take_failures()] == ["runtime_oom"]


def test_a_crash_loop_is_a_death_a_boot() -> None:
    reader = BootReader(clock=lambda: NOW)
    for number in range(4):
        for _, line in boot_log.crash_loop(Pids(100 + number, 200 + number, (300 + number, 400 + number)), NOW):
            reader.feed([Record(line.encode())])

    failures = reader.take_failures()
    assert [(failure.cause, failure.phase) for failure in failures] == [("budget_above_free", "starting")] * 4
    assert (reader.boots, reader.main_pid) == (4, 103)
    assert reader.report().args["gpu_memory_utilization"] == "1.0"
