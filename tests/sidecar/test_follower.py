"""A log followed for one engine: whose boot it is, what counts as told, and what is only history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from budget_exporter.demo import boot_log
from budget_exporter.demo.boot_log import Pids
from budget_exporter.evidence import LogTarget
from budget_exporter.evidence.file import source
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.roots import Roots
from budget_exporter.sidecar.assemble import associate
from budget_exporter.sidecar.fleet import Engine, Running
from budget_exporter.sidecar.follower import Follower, Resumed, Told
from budget_exporter.sidecar.health import Health

INSIDE = Pids(1, 3, (4, 5))
"""The processes as a container numbers them: at every start the same."""


def engine(pid: int, started: float, inner: int | None = 1) -> Engine:
    key = ProcessKey(pid, pid, "b")
    running = Running(EngineSighting("procfs", key, started, (), {}, inner_pid=inner), Shape())
    return Engine("m", None, running=running, last=running, looked=True, main=key, started_at=started)


def say(log: Path, lines: Sequence[tuple[str, str]]) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for _, line in lines)


async def until(look: Callable[[], object], limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not look():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def following(
    log: Path, resumed: Resumed | None = None, health: Health | None = None, poll: float = 0.02
) -> AsyncIterator[Follower]:
    health = health or Health("file", 1.0)
    target = LogTarget("m", path=str(log))
    follower = Follower(
        target, source(Roots(), poll=poll), health, lambda: None,
        resumed=resumed, written=lambda: log.stat().st_mtime if log.exists() else None,
    )  # fmt: skip
    health.joined(follower)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_death_that_is_followed_by_silence_is_told_all_the_same(tmp_path: Path) -> None:
    """Nothing is restarted, so no further line comes: that is how it is known that the death is told to its end."""
    log = tmp_path / "log"
    log.touch()
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        say(log, boot_log.crash_loop(INSIDE))
        told: list[Told] = []

        def look() -> bool:
            told.extend(follower.take_told())
            return bool(told)

        await until(look)
        assert [(t.failure.cause, t.newest) for t in told] == [("budget_above_free", True)]
        assert not follower.troubled
        assert follower.take_told() == []


async def test_the_boot_of_an_earlier_process_is_not_a_later_one_s_though_its_pid_is_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        first = engine(100, time.time())
        say(log, boot_log.healthy(INSIDE))
        await until(lambda: follower.reading.report.phase == "serving")
        assert associate(first, follower.reading, None)
        assert first.report is not None
        second = engine(200, time.time() + 3)  # later than any slack
        assert not associate(second, follower.reading, None)
        assert second.report is None
        third = engine(300, time.time())
        say(log, boot_log.crash_loop(INSIDE))
        await until(lambda: follower.reading.boots == 2)
        assert associate(third, follower.reading, None)


async def test_a_log_written_before_the_process_began_is_not_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    say(log, boot_log.healthy(INSIDE))
    os.utime(log, (time.time() - 600, time.time() - 600))
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        assert follower.reading.report.kv_tokens
        assert not associate(engine(100, time.time() - 20), follower.reading, None)
        assert associate(engine(100, time.time() - 700), follower.reading, None)


async def test_what_was_read_for_the_first_time_is_history(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        say(log, boot_log.crash_loop(INSIDE))
    say(log, boot_log.healthy(INSIDE))
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        assert follower.take_told() == []
        assert follower.past_failure is not None
        assert follower.past_failure.cause == "budget_above_free"


async def test_what_came_while_we_were_away_counts_and_what_was_known_is_not_told_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    say(log, boot_log.healthy(INSIDE))
    main = ProcessKey(100, 100, "b")
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        known = Resumed(str(follower.cursor), main, follower.reading.report)
    say(log, boot_log.first_request_oom(INSIDE))
    say(log, boot_log.healthy(INSIDE))
    async with following(log, known) as follower:
        await until(lambda: follower.reading.caught_up)
        told = follower.take_told()
        assert [(t.failure.cause, t.newest) for t in told] == [("runtime_oom", False)]
        known = Resumed(str(follower.cursor), main, follower.reading.report)
    async with following(log, known) as follower:
        await until(lambda: follower.reading.caught_up)
        assert follower.take_told() == []


async def test_what_is_known_of_another_process_is_not_taken_up_for_this_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    known = Resumed("1:2:0", ProcessKey(100, 100, "b"), BootReport(phase="serving", kv_tokens=401408))
    async with following(log, known) as follower:
        await until(lambda: follower.reading.caught_up)
        assert associate(engine(100, 5.0), follower.reading, known)
        assert not associate(engine(101, 5.0), follower.reading, known)


async def test_lines_that_do_not_parse_count_once_over_boots_and_over_our_own_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    odd = ("", "INFO 10-05 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: many tokens")
    then = ("", "INFO 10-05 10:00:00 [a.py:1] nothing of interest")
    say(log, [*boot_log.healthy(INSIDE), odd, then, *boot_log.healthy(Pids(2, 6, (7, 8))), *[then] * 8])
    async with following(log) as follower:
        await until(lambda: follower.reading.caught_up)
        assert (follower.reading.boots, follower.reading.unparsed) == (2, 1)
        known = Resumed(str(follower.cursor), None, follower.reading.report)
    async with following(log, known) as follower:
        await until(lambda: follower.reading.caught_up)
        assert follower.reading.unparsed == 0


async def test_a_log_that_cannot_be_read_fails_until_it_can(tmp_path: Path) -> None:
    log, health = tmp_path / "absent" / "log", Health("file", 1.0)
    async with following(log, health=health) as follower:
        assert not health.health().settled
        await until(lambda: health.health().error)
        assert health.health().settled
        assert follower.reading.failing
        log.parent.mkdir()
        say(log, boot_log.healthy(INSIDE))
        await until(lambda: health.health().success)
        await until(lambda: follower.reading.caught_up and not follower.reading.failing)


async def test_a_hundred_followers_leave_no_thread_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    say(log, boot_log.crash_loop(INSIDE))
    before = threading.active_count()
    for _ in range(100):
        async with following(log) as follower:
            await until(lambda f=follower: f.reading.caught_up)  # type: ignore[misc]  # bound at once
    await until(lambda: threading.active_count() <= before + 1)


async def test_a_quiet_log_is_heard_and_one_that_hangs_is_not(tmp_path: Path) -> None:
    """A look that takes an hour stands for a file system that hangs."""
    log = tmp_path / "log"
    say(log, boot_log.healthy(INSIDE))
    health, hung = Health("file", 1.0), Health("file", 1.0)
    async with following(log, health=health) as quiet, following(log, health=hung, poll=3600) as hangs:
        await until(lambda: quiet.heard and hangs.heard)
        await until(lambda: not hangs.heard, 15)
        assert not hung.health().success
        assert quiet.heard
        assert health.health().success
