"""The runner: one thread per source, a hang turns it stale, it recovers by itself."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from budget_exporter.errors import SourceError
from budget_exporter.sidecar.outcome import RESTS
from budget_exporter.sidecar.runner import Runner


def until(condition: Callable[[], bool], limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        threading.Event().wait(0.005)


def collect(old: list[int] | None, new: int) -> list[int]:
    return [*(old or []), new]


def test_results_are_folded_until_taken() -> None:
    numbers = iter(range(1000))
    runner = Runner("numbers", 0.001, lambda: (next(numbers), []), collect)
    runner.start()
    until(lambda: runner.health().runs > 3)
    first = runner.take()
    assert first is not None
    assert first[:3] == [0, 1, 2]
    until(lambda: runner.health().runs > first[-1] + 2)
    second = runner.take()
    assert second is not None
    assert second[0] == first[-1] + 1
    runner.stop()
    assert runner.join(5)
    health = runner.health()
    assert health.success
    assert health.failures == 0
    assert health.last_success is not None


@pytest.mark.parametrize(
    ("raised", "text"),
    [(SourceError("the card is gone"), "the card is gone"), (ValueError("odd"), "ValueError: odd")],
)
def test_what_a_source_raises_is_its_health_and_nothing_more(raised: Exception, text: str) -> None:
    def run() -> tuple[int, list[str]]:
        raise raised

    runner = Runner("bad", 0.001, run, collect)
    runner.start()
    until(lambda: runner.health().failures > 2)
    health = runner.health()
    assert not health.success
    assert health.settled
    assert health.error == text
    assert health.last_success is None
    assert runner.take() is None
    runner.stop()
    assert runner.join(5)


def test_faults_fail_the_run_but_keep_the_result() -> None:
    runner = Runner("half", 0.001, lambda: (1, ["card 2: empty"]), collect)
    runner.start()
    until(lambda: runner.health().runs > 0)
    assert runner.take()
    assert not runner.health().success
    assert runner.health().error == "card 2: empty"
    runner.stop()
    assert runner.join(5)


def test_a_read_that_hangs_turns_stale_and_recovers(tmp_path: Path) -> None:
    """A FIFO without a writer hangs the real read, as a wedged driver does."""
    path = tmp_path / "mem_info_vram_used"
    os.mkfifo(path)

    def run() -> tuple[int, list[str]]:
        return int(path.read_text()), []

    runner = Runner("wedged", 0.001, run, collect, timeout=0.05)
    runner.start()
    until(lambda: "no answer" in runner.health().error)
    assert not runner.health().success
    assert runner.health().settled
    assert runner.health().runs == 0
    assert runner.take() is None
    assert sum(t.name == "source-wedged" for t in threading.enumerate()) == 1
    path.write_text("7\n")
    until(lambda: runner.health().runs > 0)
    assert runner.take() == [7]
    runner.stop()
    both = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # lets a read go that it may be in
    os.write(both, b"8\n")
    os.close(both)
    assert runner.join(5)


def test_a_waiter_is_told_of_each_result() -> None:
    seen: list[int] = []
    runner = Runner("told", 0.001, lambda: (5, []), collect, wake=seen.append)
    runner.start()
    until(lambda: len(seen) > 1)
    runner.stop()
    assert runner.join(5)
    assert set(seen) == {5}


def test_a_slow_source_is_run_less_often_and_says_so() -> None:
    """Four times as long as it runs: one that burns a core takes a quarter of it."""
    began: list[float] = []

    def run() -> tuple[int, list[str]]:
        began.append(time.monotonic())
        spin = time.thread_time() + 0.05
        while time.thread_time() < spin:
            pass
        return 1, []

    runner = Runner("slow", 0.01, run, collect)
    assert runner.health().interval == 0.01
    runner.start()
    before = time.process_time()
    until(lambda: runner.health().runs >= 4)
    cpu, seconds = time.process_time() - before, time.monotonic() - began[0]
    runner.stop()
    assert runner.join(5)
    health = runner.health()
    assert health.success
    assert health.interval == pytest.approx((1 + RESTS) * health.duration)
    assert health.interval == runner.pace >= 0.2
    assert all(later - one >= 0.2 for one, later in itertools.pairwise(began))
    assert cpu / seconds < 0.5


def test_a_source_that_is_quick_again_has_its_interval_back() -> None:
    taken = iter([0.02, *[0.0] * 1000])

    def run() -> tuple[int, list[str]]:
        threading.Event().wait(next(taken))
        return 1, []

    runner = Runner("once slow", 0.03, run, collect)
    runner.once()
    assert runner.pace >= 0.08
    runner.once()
    assert runner.pace == runner.health().interval == 0.03


def test_a_run_that_hung_does_not_slow_the_next() -> None:
    now = iter([0.0, 100.0, 100.0])
    runner = Runner("hung", 0.1, lambda: (1, []), collect, monotonic=lambda: next(now))
    runner.once()
    assert runner.pace == 0.1
