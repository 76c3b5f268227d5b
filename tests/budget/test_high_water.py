from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.high_water import START_SLACK, WINDOW, fold
from budget_exporter.facts.device import DeviceIdentity, DeviceWindow, HighWater, MemorySample

SIZE = 34_208_743_424
CARD = DeviceIdentity("0000:03:00.0", "amd", "R9700", "amdgpu", "amdgpu_vram", uuid="card-1")
NAMELESS = replace(CARD, uuid=None)


def window(
    at: float,
    newest: int,
    used_max: int | None = None,
    max_at: float | None = None,
    *,
    used_min: int | None = None,
    card: DeviceIdentity = CARD,
    size: int = SIZE,
) -> DeviceWindow:
    return DeviceWindow(
        identity=card,
        newest=MemorySample(at, size, newest),
        used_min=newest if used_min is None else used_min,
        used_max=newest if used_max is None else used_max,
        used_max_at=at if max_at is None else max_at,
        samples=10,
    )


def test_the_first_window_is_the_mark() -> None:
    mark = fold(None, window(1000.9, 5, 9, 1000.2, used_min=3), None, None)
    assert (mark.used, mark.at, mark.since, mark.all_time) == (9, 1000.2, 1000.2, 9)
    assert (mark.device, mark.uuid, mark.size, mark.epoch, mark.baseline) == (CARD.device, "card-1", SIZE, None, 3)
    assert mark.window == ((1000.0, 9),)


def test_a_mark_rises_and_never_falls_within_its_epoch() -> None:
    mark = fold(None, window(1000.0, 50), "a@10", 10.0)
    lower = fold(mark, window(1001.0, 20), "a@10", 10.0)
    assert (lower.used, lower.at) == (50, 1000.0)
    higher = fold(lower, window(1002.5, 30, 70, 1002.1), "a@10", 10.0)
    assert (higher.used, higher.at, higher.since) == (70, 1002.1, mark.since)


def test_a_new_epoch_does_not_inherit_the_dead_engine_s_use_in_the_window_that_straddles_its_start() -> None:
    mark = fold(None, window(1000.0, 90), "a@10", 10.0)
    mark = fold(mark, window(1020.9, 5, 95, 1020.1), "b@1020", 1020.5)
    assert (mark.epoch, mark.used, mark.at, mark.since) == ("b@1020", 5, 1020.9, 1020.9)
    assert mark.all_time == 95


def test_a_start_time_that_is_early_by_a_second_changes_nothing() -> None:
    mark = fold(None, window(1000.0, 90), "a@10", 10.0)
    died_at = 1020.9
    mark = fold(mark, window(1021.5, 5, 95, died_at), "b@1020", died_at - START_SLACK + 0.001)
    assert mark.used == 5


def test_a_new_engine_found_late_keeps_what_it_used_since_its_start() -> None:
    mark = fold(None, window(1000.0, 90), "a@10", 10.0)
    mark = fold(mark, window(1011.0, 40), None, None)  # b runs since 1005 and nobody has found it yet
    mark = fold(mark, window(1012.0, 20), "b@1005", 1005.0)
    assert (mark.used, mark.at, mark.since) == (40, 1011.0, 1012.0)


def test_an_engine_started_while_nobody_looked_has_its_whole_window() -> None:
    mark = fold(None, window(500.0, 90), "a@10", 10.0)
    mark = fold(mark, window(1000.9, 30, 60, 1000.3), "b@700", 700.0)
    assert (mark.used, mark.at, mark.since) == (60, 1000.3, 1000.3)


def test_an_older_engine_that_comes_back_to_the_fore_begins_with_the_newest_sample() -> None:
    mark = fold(None, window(1000.0, 50), "old@10", 10.0)
    mark = fold(mark, window(1100.9, 60), "young@1090", 1090.0)
    mark = fold(mark, window(1200.9, 40, 99, 1200.2), "old@10", 10.0)
    assert (mark.epoch, mark.used, mark.since) == ("old@10", 40, 1200.9)


def test_without_a_start_only_the_newest_sample_is_certain() -> None:
    mark = fold(None, window(1000.9, 40, 99, 1000.2), "a@?", None)
    assert (mark.used, mark.since) == (40, 1000.9)
    mark = fold(mark, window(1010.9, 30, 99, 1010.2), "b@?", None)
    assert mark.used == 30


def test_an_engine_that_ends_leaves_its_mark() -> None:
    mark = fold(None, window(1000.0, 90), "a@10", 10.0)
    mark = fold(mark, window(1001.0, 3), None, None)
    assert (mark.epoch, mark.used) == ("a@10", 90)
    mark = fold(mark, window(1002.0, 4), "a@10", 10.0)
    assert mark.used == 90


@pytest.mark.parametrize(
    ("before", "after", "size"),
    [
        (CARD, replace(CARD, uuid="card-2"), SIZE),
        (NAMELESS, NAMELESS, SIZE // 2),
        (CARD, NAMELESS, SIZE // 2),
        (NAMELESS, CARD, SIZE // 2),
        (CARD, replace(CARD, device="0000:83:00.0"), SIZE),
    ],
)
def test_another_card_begins_everything_anew(before: DeviceIdentity, after: DeviceIdentity, size: int) -> None:
    mark = fold(None, window(1000.0, 90, card=before), None, None)
    mark = fold(mark, window(1001.0, 7, card=after, size=size), "a@10", 10.0)
    assert (mark.used, mark.all_time, mark.baseline, mark.window) == (7, 7, None, ((1001.0, 7),))
    assert (mark.device, mark.uuid, mark.size) == (after.device, after.uuid, size)


@pytest.mark.parametrize(
    ("before", "after", "size"),
    [(CARD, CARD, SIZE // 2), (NAMELESS, NAMELESS, SIZE), (CARD, NAMELESS, SIZE), (NAMELESS, CARD, SIZE)],
)
def test_the_same_card_keeps_its_mark(before: DeviceIdentity, after: DeviceIdentity, size: int) -> None:
    mark = fold(None, window(1000.0, 90, card=before), None, None)
    mark = fold(mark, window(1001.0, 7, card=after, size=size), None, None)
    assert (mark.used, mark.all_time, mark.baseline) == (90, 90, 7)
    assert mark.uuid == (after.uuid or before.uuid)


def test_a_mark_of_unknown_size_is_kept() -> None:
    old = HighWater(CARD.device, None, "a@10", used=90, at=1.0, since=1.0, all_time=90)
    assert fold(old, window(1000.0, 7), "a@10", 10.0).used == 90


def test_the_baseline_is_the_smallest_use_without_an_engine() -> None:
    mark = fold(None, window(1000.0, 50), "a@10", 10.0)
    assert mark.baseline is None
    mark = fold(mark, window(1001.0, 30, used_min=20), None, None)
    mark = fold(mark, window(1002.0, 30, used_min=25), None, None)
    mark = fold(mark, window(1003.0, 30, used_min=5), "b@1002", 1002.5)
    assert mark.baseline == 20


def test_an_engine_that_nobody_could_have_seen_yet_is_no_baseline() -> None:
    mark = fold(None, window(1000.0, 50), None, None, engines_known=False)
    assert mark.baseline is None
    mark = fold(mark, window(1001.0, 50), "a@10", 10.0)
    assert mark.baseline is None


def test_the_window_keeps_a_minute_and_the_largest_of_each_second() -> None:
    mark = None
    for tick in range(200):
        mark = fold(mark, window(1000.5 + tick, 10 + tick % 7, 1000 - tick, 1000.1 + tick), None, None)
    assert mark is not None
    assert mark.window[0][0] > 1199.5 - WINDOW
    assert mark.window == tuple((1000.0 + tick, 1000 - tick) for tick in range(139, 200))
    again = fold(mark, window(1199.9, 3), None, None)
    assert dict(again.window)[1199.0] == 801


def test_a_spike_is_in_the_window_for_a_full_minute() -> None:
    mark = fold(None, window(1000.95, 1, 99, 1000.95), None, None)
    for tick in range(1, 61):
        mark = fold(mark, window(1000.95 + tick, 1), None, None)
        assert max(used for _, used in mark.window) == 99
    mark = fold(mark, window(1062.0, 1), None, None)
    assert max(used for _, used in mark.window) == 1


def test_a_window_longer_than_a_minute_counts_by_its_newest_sample() -> None:
    mark = fold(None, window(2000.0, 5, 99, 1000.0), None, None)
    assert mark.window == ((2000.0, 5),)
    assert mark.used == 99


def test_a_clock_that_steps_back_moves_the_last_minute_with_it() -> None:
    mark = None
    for tick in range(30):
        mark = fold(mark, window(1000.0 + tick, 10, 99 if tick == 5 else 10, 1000.0 + tick), "a@10", 10.0)
    assert mark is not None
    stepped = fold(mark, window(1029.0 - 20.0, 10), "a@10", 10.0)
    assert stepped.used == mark.used
    assert max(used for _, used in stepped.window) == 99
    later = fold(stepped, window(1009.0 + 50.0, 10), "a@10", 10.0)
    assert max(used for _, used in later.window) == 10


def test_after_a_long_step_back_the_last_minute_is_empty_and_the_mark_stands() -> None:
    mark = fold(None, window(100_000.0, 99), "a@10", 10.0)
    mark = fold(mark, window(1000.0, 10), "a@10", 10.0)
    assert (mark.used, mark.window) == (99, ((1000.0, 10),))


SAMPLES = st.tuples(
    st.floats(min_value=-100.0, max_value=100.0),  # how the clock moves
    st.integers(min_value=0, max_value=SIZE),
    st.integers(min_value=0, max_value=SIZE),
)


def replay(samples: list[tuple[float, int, int]], epochs: list[str | None]) -> list[tuple[DeviceWindow, HighWater]]:
    at, mark, steps = 10_000.0, None, []
    for (step, newest, other), epoch in zip(samples, epochs, strict=True):
        at += step
        low, high = sorted((newest, other))
        taken = window(at, newest, high, at - 0.5, used_min=low)
        mark = fold(mark, taken, epoch, None if epoch is None else 0.0)
        steps.append((taken, mark))
    return steps


@given(st.lists(SAMPLES, min_size=1, max_size=40))
def test_within_an_epoch_the_mark_is_monotone_and_covers_every_sample(samples: list[tuple[float, int, int]]) -> None:
    steps = replay(samples, ["a@0"] * len(samples))
    marks = [mark.used for _, mark in steps]
    assert marks == sorted(marks)
    assert marks[-1] == max(taken.used_max for taken, _ in steps)


@given(
    st.lists(SAMPLES, min_size=1, max_size=40).flatmap(
        lambda samples: st.tuples(
            st.just(samples),
            st.lists(st.sampled_from([None, "a@0", "b@0"]), min_size=len(samples), max_size=len(samples)),
        )
    )
)
def test_whatever_happens_a_mark_is_some_sample_and_at_most_the_all_time(
    case: tuple[list[tuple[float, int, int]], list[str | None]],
) -> None:
    seen: set[int] = set()
    for taken, mark in replay(*case):
        seen |= {taken.newest.used, taken.used_max}
        assert taken.newest.used <= mark.used <= mark.all_time == max(seen)
        assert mark.used in seen
        kept = [at for at, _ in mark.window]
        assert kept == sorted(set(kept))
        assert all(taken.newest.at - WINDOW < at <= taken.newest.at for at in kept)
        assert len(kept) <= WINDOW + 1
        assert max(used for _, used in mark.window) >= taken.newest.used


@given(SAMPLES, st.sampled_from([None, "a@0"]))
def test_folding_a_window_twice_changes_nothing(sample: tuple[float, int, int], epoch: str | None) -> None:
    (taken, mark), *_ = replay([sample], [epoch])
    assert fold(mark, taken, epoch, None if epoch is None else 0.0) == mark
