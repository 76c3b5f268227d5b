"""Each restart counts once, whichever witness saw it first."""

from __future__ import annotations

from hypothesis import given, strategies as st

from budget_exporter.sidecar.restarts import LAG, RestartCount


def test_the_counter_comes_first_then_the_process() -> None:
    count = RestartCount(0, 0)
    count.counter(1, 10.0)
    count.process(10.5)
    assert count.total == 1


def test_the_process_comes_first_then_the_counter() -> None:
    count = RestartCount(0, 0)
    count.process(10.0)
    count.counter(1, 10.5)
    assert count.total == 1


def test_a_process_that_died_unseen_counts_by_the_counter() -> None:
    count = RestartCount(0, 0)
    count.counter(3, 10.0)
    count.process(10.5)
    assert count.total == 3


def test_a_manual_restart_counts_by_the_process_and_the_reset_counter_does_not_count_back() -> None:
    count = RestartCount(4, 4)
    count.process(10.0)
    count.counter(0, 10.1)
    assert (count.total, count.nrestarts) == (5, 0)
    count.counter(1, 20.0)
    count.process(20.2)
    assert count.total == 6


def test_what_moved_while_we_were_down_counts_up_to_its_delta() -> None:
    count = RestartCount(2, 5)
    count.process(100.0)
    count.counter(9, 100.2)
    assert count.total == 6


def test_the_first_word_of_a_supervisor_is_no_restart() -> None:
    count = RestartCount()
    count.counter(17, 1.0)
    assert (count.total, count.nrestarts) == (0, 17)


def test_a_supervisor_that_falls_silent_takes_nothing_away() -> None:
    count = RestartCount(3, 3)
    count.counter(None, 1.0)
    count.counter(3, 2.0)
    assert count.total == 3


def test_an_old_manual_restart_does_not_swallow_a_later_automatic_one() -> None:
    count = RestartCount(0, 0)
    count.process(10.0)
    count.counter(1, 10.0 + LAG + 1)
    assert count.total == 2


def test_a_restart_that_was_announced_and_never_seen_does_not_swallow_one_by_hand() -> None:
    count = RestartCount(0, 0)
    count.counter(1, 10.0)
    count.counter(0, 20.0)
    count.process(20.1)
    assert count.total == 2


def test_what_was_seen_while_the_supervisor_could_not_be_heard_is_not_counted_again() -> None:
    count = RestartCount(0, 4)
    for at in (10.0, 20.0):
        count.process(at)
    for second in range(21, 60):
        count.silent(float(second))
    count.counter(7, 60.0)
    assert count.total == 3
    count.process(70.0)
    count.counter(8, 70.5)
    assert count.total == 4


def test_a_hundred_restarts_without_a_supervisor_are_not_kept_for_its_word() -> None:
    count = RestartCount()
    for at in range(100):
        count.process(float(at))
        count.silent(float(at))
    assert count.total == 100
    assert count._unannounced == []


def test_the_counter_of_another_unit_is_no_continuation() -> None:
    count = RestartCount()
    count.counter(2, 10.0, "a.service")
    count.counter(9, 20.0, "b.service")
    assert count.total == 0
    count.counter(10, 30.0, "b.service")
    assert count.total == 1


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 4.0)), max_size=30))
def test_automatic_restarts_in_either_order_count_once(orders: list[tuple[bool, float]]) -> None:
    count = RestartCount(0, 0)
    now = 0.0
    for n, (counter_first, lag) in enumerate(orders, start=1):
        now += 60.0
        if counter_first:
            count.counter(n, now)
            count.process(now + lag)
        else:
            count.process(now)
            count.counter(n, now + lag)
        assert count.total == n
