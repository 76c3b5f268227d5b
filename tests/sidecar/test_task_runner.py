"""A source in a task: its results are folded, its failures are told, a run that takes too long is cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from budget_exporter.errors import SourceError
from budget_exporter.sidecar.task_runner import TaskRunner


def add(total: int | None, value: int) -> int:
    return (total or 0) + value


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the runner tells of its runs, it has no event
            await asyncio.sleep(0.005)


async def test_results_are_folded_until_they_are_taken() -> None:
    async def run() -> tuple[int, list[str]]:
        return 1, []

    runner = TaskRunner("it", 0.005, run, add)
    runner.start()
    await until(lambda: runner.health().runs >= 3)
    assert (runner.take() or 0) >= 3
    assert runner.health().success
    runner.stop()


async def test_a_run_that_hangs_is_cancelled_and_the_next_one_is_made() -> None:
    hang = True

    async def run() -> tuple[int, list[str]]:
        if hang:
            await asyncio.Event().wait()
        return 1, []

    runner = TaskRunner("it", 0.005, run, add, timeout=0.02)
    runner.start()
    await until(lambda: runner.health().failures >= 2)
    assert runner.health().error == "no answer within 0.02 s"
    hang = False
    await until(lambda: runner.health().success)
    assert runner.take()
    runner.stop()


async def test_errors_of_any_kind_are_failures_with_their_words() -> None:
    errors: list[Exception] = [SourceError("socket: refused"), ValueError("bad")]

    async def run() -> tuple[int, list[str]]:
        raise errors[0]

    runner = TaskRunner("it", 0.005, run, add)
    runner.start()
    await until(lambda: runner.health().error == "socket: refused")
    errors.reverse()
    await until(lambda: runner.health().error == "ValueError: bad")
    runner.stop()


async def test_faults_make_a_run_a_failed_one_and_keep_its_result() -> None:
    async def run() -> tuple[int, list[str]]:
        return 1, ["one of two did not answer"]

    runner = TaskRunner("it", 0.005, run, add)
    runner.start()
    await until(lambda: runner.health().failures >= 1)
    assert runner.take()
    assert not runner.health().success
    runner.stop()


async def test_a_slow_source_is_asked_less_often_and_says_so() -> None:
    began: list[float] = []

    async def run() -> tuple[int, list[str]]:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.03)
        return 1, []

    runner = TaskRunner("it", 0.005, run, add)
    runner.start()
    await until(lambda: runner.health().runs >= 3)
    runner.stop()
    assert runner.health().interval >= 0.12
    assert all(later - one >= 0.12 for one, later in itertools.pairwise(began))
