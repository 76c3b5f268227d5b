"""Our journal source against a real journald and a real journalctl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from budget_exporter.demo import boot_log
from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.journal import source
from budget_exporter.roots import Roots
from tests.integration.rig_systemd import SystemdRig

pytestmark = pytest.mark.real_part("systemd")

DEADLINE = 30.0
PLAYER = """[Service]
ExecStart=/bin/sh -c 'cd /share; cat {name}.1; until [ -e {name}.2 ]; do sleep 0.05; done; cat {name}.2; exit 1'
Restart=no
"""


@pytest.fixture
def player(systemd_rig: SystemdRig, request: pytest.FixtureRequest) -> Iterator[Callable[[bytes], str]]:
    """Give a function that starts a unit which prints what it is given, then waits for say()."""
    added: list[str] = []

    def start(text: bytes) -> str:
        name = f"play-{abs(hash(request.node.name)) % 10**8}-{len(added)}"
        (systemd_rig.share / f"{name}.1").write_bytes(text)
        systemd_rig.add_unit(f"{name}.service", PLAYER.format(name=name))
        added.append(name)
        systemd_rig.start(f"{name}.service")
        return name

    yield start
    for name in added:
        systemd_rig.remove_unit(f"{name}.service")


def say(rig: SystemdRig, name: str, text: bytes) -> None:
    """Let the player print the rest, whole."""
    half = rig.share / f"{name}.half"
    half.write_bytes(text)
    half.rename(rig.share / f"{name}.2")


def send(rig: SystemdRig, **fields: str) -> None:
    """Send one entry with fields of its own through journald's native socket."""
    text = "\n".join(f"{name}={value}" for name, value in fields.items()) + "\n"
    enter = ("nsenter", "-t", str(rig.leader), "-m", "-p", "logger", "--journald")
    subprocess.run(enter, input=text.encode(), check=True, capture_output=True)


def send_all(rig: SystemdRig, entries: list[dict[str, str]]) -> None:
    """Send entries in one burst: one process, one datagram each."""
    datagrams = ["".join(f"{name}={value}\n" for name, value in fields.items()) for fields in entries]
    code = (
        "import json, socket, sys\n"
        "journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "journal.connect('/run/systemd/journal/socket')\n"
        "[journal.send(datagram.encode()) for datagram in json.loads(sys.argv[1])]\n"
    )
    rig.shell(sys.executable, "-c", code, json.dumps(datagrams))


class Following:
    def __init__(self, batches: AsyncIterator[Sequence[Record]]) -> None:
        self._batches = batches
        self.records: list[Record] = []

    def said(self) -> list[bytes]:
        """Return what the unit itself said, without systemd's own words about it."""
        return [record.data for record in self.records if record.pid != 1]

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(DEADLINE):
            while len(self.said()) < count:
                self.records += await anext(self._batches)
        return self.said()

    async def caught_up(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while batch := await anext(self._batches):
                self.records += batch


@asynccontextmanager
async def following(rig: SystemdRig, target: LogTarget, cursor: str | None = None) -> AsyncIterator[Following]:
    async with following_at(rig.rootfs, target, cursor) as log:
        yield log


@asynccontextmanager
async def following_at(rootfs: Path, target: LogTarget, cursor: str | None = None) -> AsyncIterator[Following]:
    batches = source(Roots(rootfs=rootfs)).batches(target, cursor)
    try:
        yield Following(batches)
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


def children() -> set[int]:
    """Return the journalctl children of this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for pid in (task / "children").read_text(encoding="ascii").split():
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "journalctl":
                    found.add(int(pid))
    return found


async def test_a_units_lines_are_followed_with_their_times_from_before_its_first_one(
    systemd_rig: SystemdRig, player: Callable[[bytes], str]
) -> None:
    name = player(b"one\ntwo\n")
    before = time.time()
    async with following(systemd_rig, LogTarget("tiny", unit=f"{name}.service")) as log:
        assert await log.until(2) == [b"one", b"two"]
        await log.caught_up()
        say(systemd_rig, name, b"three\nfour\n")
        assert await log.until(4) == [b"one", b"two", b"three", b"four"]
    times = [record.at for record in log.records]
    assert all(at is not None and before - DEADLINE < at < time.time() for at in times)
    assert children() == set()


async def test_a_follower_started_before_the_first_entry_loses_none_of_the_first_batch(systemd_rig: SystemdRig) -> None:
    lines = [f"line {number}" for number in range(20)]
    async with following(systemd_rig, LogTarget("tiny", container="c-late")) as log:
        await log.caught_up()
        send_all(systemd_rig, [{"MESSAGE": line, "CONTAINER_NAME": "c-late"} for line in lines])
        assert await log.until(20) == [line.encode() for line in lines]


async def test_a_coloured_line_and_one_that_is_not_utf8_keep_their_bytes(
    systemd_rig: SystemdRig, player: Callable[[bytes], str]
) -> None:
    coloured = (
        b"\x1b[1;36m(EngineCore pid=12)\x1b[0;0m INFO 02-03 10:00:22 [w.py:1] Available KV cache memory: 6.87 GiB"
    )
    name = player(coloured + b"\n\xff\xfe not text\n" + b"long" * 2500 + b"\n")
    async with following(systemd_rig, LogTarget("tiny", unit=name)) as log:
        said = await log.until(3)
    assert said == [coloured, b"\xff\xfe not text", b"long" * 2500]
    reader = BootReader()
    reader.feed(log.records)
    assert reader.report().common.kv_available is not None


async def test_going_on_by_cursor_neither_loses_nor_repeats(
    systemd_rig: SystemdRig, player: Callable[[bytes], str]
) -> None:
    name = player(b"one\ntwo\nthree\n")
    target = LogTarget("tiny", unit=f"{name}.service", since=time.time() - 60)
    async with following(systemd_rig, target) as log:
        await log.until(3)
        cursor = next(record.cursor for record in log.records if record.data == b"two")
    say(systemd_rig, name, b"four\nfive\n")
    async with following(systemd_rig, target, cursor) as again:
        assert await again.until(3) == [b"three", b"four", b"five"]
        await again.caught_up()
        assert again.said() == [b"three", b"four", b"five"]


async def test_entries_before_since_are_left_out(systemd_rig: SystemdRig, player: Callable[[bytes], str]) -> None:
    send(systemd_rig, MESSAGE="old", CONTAINER_NAME="c-since")
    async with following(systemd_rig, LogTarget("tiny", container="c-since")) as log:
        await log.until(1)
        await log.caught_up()
    since = (log.records[0].at or 0.0) + 0.001
    send(systemd_rig, MESSAGE="new", CONTAINER_NAME="c-since")
    async with following(systemd_rig, LogTarget("tiny", container="c-since", since=since)) as log:
        assert await log.until(1) == [b"new"]


async def test_only_the_container_that_was_asked_for_is_followed(systemd_rig: SystemdRig) -> None:
    send(systemd_rig, MESSAGE="other", CONTAINER_NAME="c-other")
    send(systemd_rig, MESSAGE="mine", CONTAINER_NAME="c-mine", PRIORITY="3")
    async with following(systemd_rig, LogTarget("tiny", container="c-mine")) as log:
        assert await log.until(1) == [b"mine"]
    assert log.records[0].stream == "stderr"


async def test_a_container_is_known_by_its_id_too(systemd_rig: SystemdRig) -> None:
    whole = "ab12" * 16
    send(systemd_rig, MESSAGE="mine", CONTAINER_NAME="c-id", CONTAINER_ID=whole[:12], CONTAINER_ID_FULL=whole)
    for target in (LogTarget("tiny", container_id=whole), LogTarget("tiny", container=whole[:12])):
        async with following(systemd_rig, target) as log:
            assert await log.until(1) == [b"mine"]


async def test_a_long_line_that_a_container_engine_sent_in_parts_is_one(systemd_rig: SystemdRig) -> None:
    entries = [
        {"MESSAGE": "one ", "CONTAINER_NAME": "c-parts", "PRIORITY": "6", "CONTAINER_PARTIAL_MESSAGE": "true"},
        {"MESSAGE": "other", "CONTAINER_NAME": "c-parts", "PRIORITY": "3"},
        {"MESSAGE": "two", "CONTAINER_NAME": "c-parts", "PRIORITY": "6"},
    ]
    send_all(systemd_rig, entries)
    async with following(systemd_rig, LogTarget("tiny", container="c-parts")) as log:
        assert await log.until(2) == [b"other", b"one two"]


async def test_where_the_entry_of_a_cursor_is_gone_the_next_one_is_not_left_out(systemd_rig: SystemdRig) -> None:
    """journalctl's own --after-cursor would: the place of another container's entry stands for a deleted one."""
    send(systemd_rig, MESSAGE="gone", CONTAINER_NAME="c-gone")
    async with following(systemd_rig, LogTarget("tiny", container="c-gone")) as log:
        await log.until(1)
    send_all(systemd_rig, [{"MESSAGE": f"line {number}", "CONTAINER_NAME": "c-after"} for number in range(5)])
    async with following(systemd_rig, LogTarget("tiny", container="c-after"), log.records[0].cursor) as again:
        assert await again.until(5) == [f"line {number}".encode() for number in range(5)]


async def test_a_burst_after_a_cursor_loses_nothing(systemd_rig: SystemdRig) -> None:
    send(systemd_rig, MESSAGE="first", CONTAINER_NAME="c-burst")
    target = LogTarget("tiny", container="c-burst")
    async with following(systemd_rig, target) as log:
        await log.until(1)
    async with following(systemd_rig, target, log.records[0].cursor) as again:
        await again.caught_up()
        lines = [f"line {number}" for number in range(50)]
        send_all(systemd_rig, [{"MESSAGE": line, "CONTAINER_NAME": "c-burst"} for line in lines])
        assert await again.until(50) == [line.encode() for line in lines]


async def test_a_journalctl_that_hangs_does_not_seem_quiet(systemd_rig: SystemdRig) -> None:
    batches = source(Roots(rootfs=systemd_rig.rootfs)).batches(LogTarget("tiny", container="c-hang"), None)
    try:
        async with asyncio.timeout(DEADLINE):
            assert [await anext(batches), await anext(batches)] == [[], []]
        (child,) = children()
        os.kill(child, signal.SIGSTOP)
        waiting = asyncio.ensure_future(anext(batches))
        done, _ = await asyncio.wait({waiting}, timeout=5)
        assert not done
        os.kill(child, signal.SIGCONT)
        async with asyncio.timeout(DEADLINE):
            assert await waiting == []
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("partly", [False, True])
def test_a_journal_that_may_not_be_seen_in_full_is_denied_and_not_quiet(
    systemd_rig: SystemdRig, tmp_path: Path, partly: bool
) -> None:
    """As nobody, who may read no journal, or one of those there are."""
    send(systemd_rig, MESSAGE="mine", CONTAINER_NAME=f"c-denied-{partly}")
    systemd_rig.shell("journalctl", "--sync")
    places = [systemd_rig.rootfs / "var/log/journal", systemd_rig.rootfs / "run/log/journal"]
    kept = next(journal for place in places for journal in place.glob("*/system.journal"))
    root = Path(tempfile.mkdtemp(prefix="budget-journal-", dir="/tmp"))  # pytest's own is closed to others
    try:
        place = root / "var/log/journal" / kept.parent.name
        place.mkdir(parents=True)
        shutil.copyfile(kept, place / "system.journal")
        if partly:
            shutil.copyfile(kept, place / "user-65534.journal")
        root.chmod(0o755)
        (place / "system.journal").chmod(0o640)
        container = "c-elsewhere" if partly else "c-denied-False"
        why = as_nobody(root, LogTarget("tiny", container=container))
        assert why.startswith("SourceDenied: ")
        assert "Needs the group systemd-journal or CAP_DAC_READ_SEARCH" in why
        if partly:
            assert as_nobody(root, LogTarget("tiny", container="c-denied-True")) == "[b'mine']"
    finally:
        shutil.rmtree(root)


def as_nobody(rootfs: Path, target: LogTarget) -> str:
    """Return what a process without rights gets as its first batch, or the error it gets."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, asyncio.new_event_loop().run_until_complete(first_of(rootfs, target)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(pid, 0)
    return text


async def first_of(rootfs: Path, target: LogTarget) -> str:
    try:
        async with following_at(rootfs, target) as log, asyncio.timeout(DEADLINE):
            while not log.records:
                log.records += await anext(log._batches)
            return str(log.said())
    except (SourceError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"


async def test_a_crashing_engine_is_read_from_the_journal(
    systemd_rig: SystemdRig, player: Callable[[bytes], str]
) -> None:
    pids = boot_log.Pids(11, 12, (30, 31))
    lines = [line for _, line in (*boot_log.knife_edge(pids), *boot_log.first_request_oom(pids))]
    name = player("\n".join(lines).encode() + b"\n")
    reader = BootReader()
    async with following(systemd_rig, LogTarget("tiny", unit=name)) as log:
        await log.until(len(lines))
    reader.feed(log.records)
    (failure,) = reader.take_failures()
    assert (failure.cause, failure.rank, failure.free and failure.free.bytes) == ("first_request_oom", 0, 0)
    assert reader.report().kv_tokens == 1350182


async def test_cancelling_in_the_midst_of_waiting_ends_the_child(systemd_rig: SystemdRig) -> None:
    async def follow() -> None:
        async for _ in source(Roots(rootfs=systemd_rig.rootfs)).batches(LogTarget("tiny", unit="none"), None):
            started.set()

    started = asyncio.Event()
    task = asyncio.ensure_future(follow())
    async with asyncio.timeout(DEADLINE):
        await started.wait()
        assert len(children()) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while children():  # noqa: ASYNC110 - the kernel has no event for us
            await asyncio.sleep(0.01)


async def test_a_child_that_ends_is_an_error_that_says_so(systemd_rig: SystemdRig) -> None:
    batches = source(Roots(rootfs=systemd_rig.rootfs)).batches(LogTarget("tiny", unit="none"), None)
    async with asyncio.timeout(DEADLINE):
        assert await anext(batches) == []
        (child,) = children()
        subprocess.run(["kill", str(child)], check=True)  # noqa: ASYNC221 - takes a millisecond
        with pytest.raises(SourceError, match="journalctl ended with -15: it said nothing"):
            await anext(batches)


async def test_a_cursor_that_means_nothing_is_an_error_with_journalctls_own_words(systemd_rig: SystemdRig) -> None:
    async with following(systemd_rig, LogTarget("tiny", unit="none"), "no cursor") as log:
        with pytest.raises(SourceError, match="journalctl ended with 1: Failed to seek to cursor"):
            await log.caught_up()
