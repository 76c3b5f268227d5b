"""The board: windows of ten samples, freshness, and what was free before a start."""

from __future__ import annotations

from budget_exporter.facts.device import (
    CrossCheck,
    DeviceIdentity,
    DeviceReport,
    DeviceSample,
    Holders,
    MemorySample,
    ProcessMemory,
    RuntimeMemory,
)
from budget_exporter.sidecar.devices import GONE_AFTER, HISTORY, STALE_AFTER, Board
from budget_exporter.sidecar.reports import Folded, Windows, fold

CARD = "0000:03:00.0"


def report(at: float, used: int, *, size: int = 100, uuid: str = "GPU-1") -> DeviceReport:
    identity = DeviceIdentity("0000:03:00.0", "amd", "card", "amdgpu", "amdgpu_vram", uuid=uuid)
    return DeviceReport((DeviceSample(identity, MemorySample(at, size, used)),))


def windows(*reports: DeviceReport) -> Windows:
    result: Folded | None = None
    for one in reports:
        result = fold(result, one)
    assert result is not None
    return result.windows


def test_a_window_keeps_newest_smallest_and_largest() -> None:
    window = windows(report(1.0, 50), report(1.1, 90), report(1.2, 20), report(1.3, 60))["0000:03:00.0"]
    assert (window.newest.used, window.used_min, window.used_max, window.used_max_at) == (60, 20, 90, 1.1)
    assert window.samples == 4
    assert window.began == 1.0


def test_a_window_says_for_how_long_nobody_looked() -> None:
    assert windows(report(1.0, 50))[CARD].gap == 0.0
    window = windows(report(1.0, 50), report(1.125, 90), report(1.75, 20), report(1.875, 60))[CARD]
    assert (window.began, window.gap) == (1.0, 0.625)


def test_another_card_in_the_slot_begins_its_own_window() -> None:
    window = windows(report(1.0, 90), report(1.1, 10, uuid="GPU-2"))["0000:03:00.0"]
    assert (window.used_max, window.samples) == (10, 1)


def test_a_run_without_the_device_leaves_its_window() -> None:
    assert windows(report(1.0, 90), DeviceReport())["0000:03:00.0"].used_max == 90


def test_the_mark_and_the_window_maximum_hold_a_spike_that_the_newest_sample_does_not() -> None:
    board = Board()
    board.update(windows(report(10.0, 50), report(10.1, 95), report(10.2, 51)), {})
    (state,) = board.states(10.5)
    assert (state.memory.used, state.high_water.used, state.window_max) == (51, 95, 95)
    board.update(windows(report(69.0, 51)), {})
    assert board.states(69.5)[0].window_max == 95
    board.update(windows(report(72.0, 51)), {})
    (state,) = board.states(72.5)
    assert (state.high_water.used, state.window_max) == (95, 51)


def test_a_device_without_a_fresh_sample_is_not_shown_but_not_forgotten() -> None:
    board = Board()
    board.update(windows(report(10.0, 95)), {})
    assert board.states(10.0 + STALE_AFTER)
    assert board.states(10.1 + STALE_AFTER) == ()
    assert board.marks[0].used == 95
    board.update(windows(report(30.0, 50)), {})
    assert board.states(30.0)[0].high_water.used == 95


def test_a_new_engine_begins_a_new_mark_and_another_card_too() -> None:
    board = Board()
    board.update(windows(report(10.0, 95)), {"0000:03:00.0": ("a@1", 1.0)})
    board.update(windows(report(20.0, 30)), {"0000:03:00.0": ("a@2", 19.0)})
    assert board.states(20.0)[0].high_water.used == 30
    board.update(windows(report(21.0, 10, uuid="GPU-2")), {"0000:03:00.0": ("a@2", 19.0)})
    assert board.states(21.0)[0].high_water.used == 10


def test_what_is_held_while_engines_are_unknown_is_no_baseline() -> None:
    board = Board()
    board.update(windows(report(10.0, 95)), {}, known=False)
    assert board.states(10.0)[0].high_water.baseline is None
    board.update(windows(report(11.0, 5)), {})
    assert board.states(11.0)[0].high_water.baseline == 5


def test_free_before_a_start_is_of_the_last_sample_before_it() -> None:
    board = Board()
    assert board.free_before("0000:03:00.0", 9.0) is None
    for at, used in ((10.0, 5), (11.0, 6), (12.0, 70)):
        board.update(windows(report(at, used)), {})
    assert board.free_before("0000:03:00.0", 11.5) == 94
    assert board.free_before("0000:03:00.0", 9.0) is None
    board.update(windows(report(12.5 + HISTORY, 70)), {})
    assert board.free_before("0000:03:00.0", 11.5) is None


def test_marks_come_back_from_the_state_file() -> None:
    board = Board()
    board.update(windows(report(10.0, 95)), {"0000:03:00.0": ("a@1", 1.0)})
    again = Board(board.marks)
    assert again.states(10.0) == ()
    again.update(windows(report(50.0, 40)), {"0000:03:00.0": ("a@1", 1.0)})
    assert again.states(50.0)[0].high_water.used == 95


def test_a_clock_that_steps_back_makes_no_old_sample_fresh() -> None:
    board = Board()
    board.update(windows(report(1000.0, 95)), {})
    assert board.states(1000.5)
    assert board.states(1000.0 - 3600) == ()


def test_another_card_in_the_slot_has_no_history_of_the_one_before() -> None:
    board = Board()
    board.update(windows(report(10.0, 5)), {})
    board.update(windows(report(12.0, 70, uuid="GPU-2", size=200)), {})
    assert board.free_before("0000:03:00.0", 11.0) is None


def test_a_sample_of_the_process_before_is_not_what_was_free() -> None:
    board = Board()
    for at, used in ((10.0, 95), (11.0, 5)):
        board.update(windows(report(at, used)), {})
    assert board.free_before("0000:03:00.0", 11.5, since=10.5) == 95
    assert board.free_before("0000:03:00.0", 11.5, since=11.2) is None


def test_a_device_that_fails_keeps_its_place_for_ten_minutes() -> None:
    board = Board()
    identity = report(10.0, 5).devices[0].identity
    assert board.identities([identity], 10.0) == [identity]
    assert board.identities([], 10.0 + GONE_AFTER) == [identity]
    assert board.identities([], 10.1 + GONE_AFTER) == []


def test_a_slow_source_has_its_samples_shown_for_longer() -> None:
    board = Board()
    board.update(windows(report(10.0, 95)), {}, interval=10.0)
    assert board.states(34.9)
    assert board.states(35.1) == ()


def test_what_a_source_tells_of_holders_and_checks_is_replaced_by_its_next_run_and_grows_old() -> None:
    board = Board()
    board.update(windows(report(10.0, 50)), {})
    board.update(windows(report(12.0, 70)), {})
    some, every = Holders(CARD, 12.0, ()), Holders(CARD, 12.0, (ProcessMemory(1, 5),), complete=True)
    board.tell("fdinfo", Folded(holders=(some,)), 12.0, 1.0)
    board.tell("kfd", Folded(holders=(every,)), 12.0, 1.0)
    board.tell("rocm_smi", Folded(cross_checks=(CrossCheck(CARD, 10.4, 58), CrossCheck("other", 10.4, 1))), 12.0, 30.0)
    board.tell("hook", Folded(runtime=(RuntimeMemory(7, 12.0, 3),)), 12.0, 1.0)
    assert board.holders(12.5) == {CARD: every}
    assert board.differences(12.5) == {CARD: {"rocm_smi": 8}}
    assert board.runtime(12.5)[7].used == 3
    board.tell("kfd", Folded(), 13.0, 1.0)
    assert board.holders(13.0) == {CARD: some}
    assert board.holders(15.5) == {}
    assert board.differences(80.0) == {CARD: {"rocm_smi": 8}}
    assert board.differences(88.0) == {}


def test_a_cross_check_is_held_against_the_sample_of_its_own_time_however_long_it_is_shown() -> None:
    board = Board()
    board.update(windows(report(10.0, 50)), {})
    board.tell("rocm_smi", Folded(cross_checks=(CrossCheck(CARD, 10.2, 50),)), 11.0, 60.0)
    for at in range(11, 101):
        board.update(windows(report(float(at), 90)), {})
    assert board.differences(100.0) == {CARD: {"rocm_smi": 0}}
    board.tell("rocm_smi", Folded(cross_checks=(CrossCheck(CARD, 104.0, 90),)), 105.0, 60.0)
    assert board.differences(105.0) == {}, "no sample is near enough to be held against it"
