# ruff: noqa: ASYNC240 - a test may touch its own small files between two awaits
from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.file import source
from budget_exporter.evidence.tail import Tail
from budget_exporter.roots import Roots

LOG = "/var/log/engine.log"
DEADLINE = 10.0
NOW = 1770200000.5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / LOG.lstrip("/")
    path.parent.mkdir(parents=True)
    return path


def lines_of(records: Sequence[Record]) -> list[bytes]:
    """Return the lines of records, of which each may hold several."""
    return [line for record in records for line in re.split(rb"[\r\n]+", record.data) if line]


class Following:
    """A follower of the log and what it has yielded."""

    def __init__(self, root: Path, cursor: str | None = None, limit: int = 65536) -> None:
        target = LogTarget("tiny", path=LOG)
        self._batches = source(Roots(rootfs=root), poll=0.01, limit=limit, clock=lambda: NOW).batches(target, cursor)
        self.records: list[Record] = []

    @property
    def lines(self) -> list[bytes]:
        return lines_of(self.records)

    async def until(self, *lines: bytes) -> None:
        """Wait until exactly ``lines`` have come."""
        async with asyncio.timeout(DEADLINE):
            while len(self.lines) < len(lines):
                self.records += await anext(self._batches)
        assert self.lines == list(lines)

    async def caught_up(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while batch := await anext(self._batches):
                self.records += batch

    async def end(self) -> None:
        await self._batches.aclose()  # type: ignore[attr-defined]


@pytest.fixture
async def following(tmp_path: Path, log: Path) -> AsyncIterator[Following]:
    follower = Following(tmp_path)
    yield follower
    await follower.end()


def write(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


async def test_what_is_there_comes_first_then_what_is_added(log: Path, following: Following) -> None:
    write(log, b"one\ntwo\n")
    await following.until(b"one", b"two")
    await following.caught_up()
    write(log, b"thr")
    write(log, b"ee\n")
    await following.until(b"one", b"two", b"three")


async def test_a_line_that_comes_while_it_is_followed_has_our_time_and_one_that_was_there_has_none(
    tmp_path: Path, log: Path, following: Following
) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    await following.caught_up()
    write(log, b"two\n")
    await following.until(b"one", b"two")
    assert [record.at for record in following.records] == [None, NOW]
    again = Following(tmp_path, following.records[0].cursor)
    await again.until(b"two")
    assert [record.at for record in again.records] == [None]
    await again.end()


async def test_a_file_that_came_late_is_history_to_its_first_end(log: Path, following: Following) -> None:
    await following.caught_up()
    write(log.with_name("draft"), b"one\n")
    log.with_name("draft").rename(log)
    await following.until(b"one")
    assert [record.at for record in following.records] == [None]


async def test_a_file_that_is_not_there_yet_is_waited_for(log: Path, following: Following) -> None:
    await following.caught_up()
    write(log, b"one\n")
    await following.until(b"one")


async def test_carriage_returns_end_lines_too(log: Path, following: Following) -> None:
    write(log, b"10%|\r20%|\r\nnext\r\n")
    await following.until(b"10%|", b"20%|", b"next")


async def test_a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_start(
    log: Path, following: Following
) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    old = log.rename(log.with_name("engine.log.1"))
    write(old, b"two\nhalf")
    write(log, b"three\n")
    await following.until(b"one", b"two", b"half", b"three")
    assert [record.cut for record in following.records] == [False, False, True, False]


async def test_a_writer_that_goes_on_in_the_renamed_file_is_followed(log: Path, following: Following) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    old = log.rename(log.with_name("engine.log.1"))
    log.touch()
    write(old, b"two\n")
    await following.until(b"one", b"two")
    write(old, b"three\n")
    await following.until(b"one", b"two", b"three")


async def test_a_truncated_file_is_read_from_its_start(log: Path, following: Following) -> None:
    write(log, b"one is long enough\n")
    await following.until(b"one is long enough")
    await following.caught_up()
    log.write_bytes(b"")
    write(log, b"two\n")
    await following.until(b"one is long enough", b"two")


async def test_copytruncate_is_seen_though_the_file_has_grown_beyond_our_place(log: Path, following: Following) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    await following.caught_up()
    shutil.copy(log, log.with_name("engine.log.1"))
    log.write_bytes(b"two\nthree\nfour\n")
    await following.until(b"one", b"two", b"three", b"four")


async def test_what_was_written_before_a_copytruncate_and_not_yet_read_is_read_from_the_copy(
    tmp_path: Path, log: Path
) -> None:
    """Whatever the moment at which the follower looks: both steps of it are done between two looks here."""
    tail = Tail(log, None, 100)
    write(log, b"one\n")
    assert lines_of(tail.read()) == [b"one"]
    write(log, b"two\nhal")
    shutil.copy(log, log.with_name("engine.log.1"))
    os.truncate(log, 0)
    write(log, b"three\n")
    assert read_all(tail) == [b"two", b"hal", b"three"]


async def test_a_writer_that_does_not_append_goes_on_behind_a_hole(log: Path) -> None:
    """copytruncate of a log that a shell's ``>`` opened: the file begins with as many NULs as were cut off."""
    tail = Tail(log, None, 100)
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * 99 + b"\n")
        writer.write(b"one\n" * 100_000)
        assert len(read_all(tail)) == 100_001
        os.truncate(log, 0)
        writer.write(b"two\n")
        assert read_all(tail) == [b"two"]
        os.truncate(log, 0)
        assert read_all(tail) == []
        writer.write(b"three\n")
        assert read_all(tail) == [b"three"]


def read_all(tail: Tail) -> list[bytes]:
    """Return the lines up to the end of what is there."""
    found: list[bytes] = []
    while records := tail.read():
        found += lines_of(records)
    return found


def pack(path: Path) -> None:
    """Pack a file as gzip does: another inode, the same time."""
    state = path.stat()
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(packed, ns=(state.st_atime_ns, state.st_mtime_ns))
    path.unlink()


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [
        ("engine.log.3.gz", "engine.log.2.gz", "engine.log.1"),
        ("engine.log-20260201.gz", "engine.log-20260202.gz", "engine.log-20260203"),
        ("engine.log.20260203-100029.gz", "engine.log.20260203-110029.gz", "engine.log.20260203-120029"),
        ("engine-20260201.log", "engine-20260202.log", "engine-20260203.log"),
    ],
)
def test_a_log_rotated_more_than_once_while_nobody_looked_is_read_whole(
    log: Path, first: str, second: str, newest: str
) -> None:
    """Packed or not, whatever the times of the files say."""
    write(log, b"one\n")
    tail = Tail(log, None, 100)
    (record,) = tail.read()
    tail.close()
    write(log, b"two\n")
    for name, line in ((first, b"three\n"), (second, b"four\n"), (newest, b"five\n")):
        rotated = log.rename(log.with_name(name.removesuffix(".gz")))
        if name.endswith(".gz"):
            pack(rotated)
        write(log, line)
    write(log.with_name("engine2.log"), b"another\n")
    write(log.with_name("engine.log.old"), b"another\n")
    assert read_all(Tail(log, record.cursor, 100)) == [b"two", b"three", b"four", b"five"]


def test_a_log_rotated_twice_between_two_looks_is_read_whole(log: Path) -> None:
    write(log, b"one\n")
    tail = Tail(log, None, 100)
    assert read_all(tail) == [b"one"]
    write(log, b"two\n")
    log.rename(log.with_name("engine.log.2"))
    write(log.with_name("engine.log.1"), b"three\n")
    write(log, b"four\n")
    assert read_all(tail) == [b"two", b"three", b"four"]


def test_a_copied_log_is_found_by_what_is_in_it(log: Path) -> None:
    write(log, b"one\n")
    (record,) = Tail(log, None, 100).read()
    write(log, b"two\n")
    shutil.copy(log, log.with_name("engine.log.1"))
    os.truncate(log, 0)
    write(log, b"three\n")
    assert read_all(Tail(log, record.cursor, 100)) == [b"two", b"three"]


def test_where_the_place_is_gone_all_that_was_written_since_is_read(log: Path) -> None:
    """Kept too short: what was deleted cannot be had, and what was rotated before we stopped is not read again."""
    write(log.with_name("engine.log.9"), b"long ago\n")
    os.utime(log.with_name("engine.log.9"), (1, 1))
    write(log, b"one\n")
    (record,) = Tail(log, None, 100).read()
    log.unlink()
    write(log.with_name("engine.log.1"), b"three\n")
    write(log, b"four\n")
    assert read_all(Tail(log, record.cursor, 100)) == [b"three", b"four"]


def test_a_packed_file_that_is_broken_is_read_as_far_as_it_goes(log: Path) -> None:
    write(log, b"one\n")
    (record,) = Tail(log, None, 100).read()
    body = b"".join(f"line {number} {number * 7919 % 1000}\n".encode() for number in range(20_000))
    write(log, body)
    rotated = log.rename(log.with_name("engine.log.1"))
    pack(rotated)
    packed = log.with_name("engine.log.1.gz")
    os.truncate(packed, packed.stat().st_size // 2)
    write(log, b"last\n")
    found = read_all(Tail(log, record.cursor, 100))
    assert found[0] == b"line 0 0"
    assert found[-1] == b"last"
    assert body.startswith(b"\n".join(found[:-2]))


async def test_a_removed_file_that_comes_again_is_read_from_its_start(log: Path, following: Following) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    log.unlink()
    write(log, b"two\n")
    await following.until(b"one", b"two")


async def test_a_line_over_the_limit_is_cut_and_the_next_one_whole(tmp_path: Path, log: Path) -> None:
    write(log, b"x" * 1000 + b"\nnext\n")
    follower = Following(tmp_path, limit=10)
    await follower.until(b"x" * 10, b"next")
    assert [record.cut for record in follower.records] == [True, False]
    await follower.end()


def test_a_line_of_many_megabytes_is_never_held_whole_and_is_not_the_end_of_the_file(log: Path) -> None:
    write(log, b"x" * (20 << 20) + b"\nnext\n")
    tail, records = Tail(log, None, 100), []
    tracemalloc.start()
    try:
        while batch := tail.read():
            records += batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        tail.close()
    assert [(len(record.data), record.cut) for record in records] == [(100, True), (4, False)]
    assert peak < 4 << 20


def test_a_line_over_the_limit_among_others_is_cut_alone(log: Path) -> None:
    write(log, b"one\n" + b"x" * 101 + b"\r" + b"y" * 100 + b"\ntwo\n")
    records = Tail(log, None, 100).read()
    assert [(record.data[:3], len(record.data), record.cut) for record in records] == [
        (b"one", 3, False), (b"xxx", 100, True), (b"yyy", 100, False), (b"two", 3, False),
    ]  # fmt: skip


async def test_resuming_by_cursor_neither_loses_nor_repeats(tmp_path: Path, log: Path, following: Following) -> None:
    for line in (b"one", b"two", b"three"):
        await following.caught_up()
        write(log, line + b"\n")
    await following.until(b"one", b"two", b"three")
    for seen, left in ((0, (b"two", b"three")), (1, (b"three",)), (2, ())):
        again = Following(tmp_path, following.records[seen].cursor)
        await again.until(*left)
        await again.caught_up()
        assert again.lines == list(left)
        await again.end()


async def test_resuming_reads_the_rest_of_a_file_that_was_renamed_meanwhile(
    tmp_path: Path, log: Path, following: Following
) -> None:
    write(log, b"one\n")
    await following.until(b"one")
    await following.end()
    write(log, b"two\n")
    log.rename(log.with_name("engine.log.1"))
    write(log, b"three\n")
    again = Following(tmp_path, following.records[0].cursor)
    await again.until(b"two", b"three")
    await again.end()


@pytest.mark.parametrize("cursor", ["", "x", "1:2", "1:2:3", "-1:-1:-1", "9" * 30 + ":1:1"])
async def test_a_cursor_that_means_nothing_any_more_starts_at_the_beginning(
    tmp_path: Path, log: Path, cursor: str
) -> None:
    write(log, b"one\n")
    follower = Following(tmp_path, cursor)
    await follower.until(b"one")
    await follower.end()


async def test_a_cursor_into_a_file_cut_short_since_starts_at_the_beginning(tmp_path: Path, log: Path) -> None:
    write(log, b"one\n")
    state = log.stat()
    follower = Following(tmp_path, f"{state.st_dev}:{state.st_ino}:2")
    await follower.until(b"one")
    await follower.end()


async def first(root: Path, path: str | None) -> Sequence[Record]:
    batches = source(Roots(rootfs=root)).batches(LogTarget("tiny", path=path), None)
    async with aclosing(batches), asyncio.timeout(DEADLINE):  # type: ignore[type-var]
        return await anext(batches)


async def test_a_missing_directory_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere/engine\.log: No such file"):
        await first(tmp_path, "/nowhere/engine.log")


async def test_a_target_without_a_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no path given for the log of tiny"):
        await first(tmp_path, None)


async def test_a_directory_or_fifo_is_no_log(tmp_path: Path, log: Path) -> None:
    log.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        await first(tmp_path, LOG)
    log.rmdir()
    os.mkfifo(log)
    with pytest.raises(SourceError, match="not a regular file"):
        await first(tmp_path, LOG)


def test_a_file_that_may_not_be_read_names_the_permission(log: Path) -> None:
    write(log, b"one\n")
    log.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(SourceDenied, match=r"engine\.log: Permission denied; needs CAP_DAC_READ_SEARCH"):
            Tail(log, None, 100).read()
    finally:
        os.seteuid(was)


async def test_cancelling_a_follower_ends_its_thread(tmp_path: Path, log: Path) -> None:
    write(log, b"one\n" * 10)
    follower = Following(tmp_path)
    await follower.until(*[b"one"] * 10)
    waiting = asyncio.ensure_future(follower.caught_up())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await follower.end()
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while any(thread.name == "file:engine.log" for thread in threading.enumerate()):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_a_consumer_that_lags_bounds_what_is_read_ahead(tmp_path: Path, log: Path) -> None:
    write(log, b"a line of some length\n" * 200_000)
    follower = Following(tmp_path)
    async with asyncio.timeout(DEADLINE):
        follower.records += await anext(follower._batches)
    held = follower._batches.ag_frame.f_locals["follower"]  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE):
        while held._room._value:  # noqa: ASYNC110 - the thread's semaphore is no asyncio event
            await asyncio.sleep(0.01)
    assert held._what._tail._offset <= 4 << 18
    await follower.end()


async def test_history_in_another_zone_has_the_time_at_which_it_was_written(tmp_path: Path, log: Path) -> None:
    """A container's stamps are in UTC, the host's clock is not: the file's own time tells the difference."""
    write(log, b"INFO 02-03 08:00:00 [a.py:1] Application startup complete.\nINFO 02-03 10:00:00 [a.py:1] x\n")
    written = 1770112800.0 - 5 * 3600
    os.utime(log, (written, written))
    follower = Following(tmp_path)
    await follower.caught_up()
    await follower.end()
    assert {record.zone for record in follower.records} == {5 * 3600}
    reader = BootReader(clock=lambda: written + 86400)
    reader.feed(follower.records)
    assert reader.report().phase_at == written - 7200


async def test_the_files_of_podman_and_docker_can_be_read_directly(tmp_path: Path, log: Path) -> None:
    stamp = b"2026-02-03T10:00:29.297966219+00:00"
    write(log, stamp + b" stdout P INFO 02-03 10:00:22 [w.py:1] Available KV cache \n")
    write(log, stamp + b" stdout F memory: 6.87 GiB\n")
    follower = Following(tmp_path)
    await follower.caught_up()
    await follower.end()
    reader = BootReader()
    reader.feed(follower.records)
    assert reader.report().common.kv_available is not None
