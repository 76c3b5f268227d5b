"""Our source of containers' logs against a real podman and a real docker: every line once, whatever is restarted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from budget_exporter.demo import boot_log
from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.container_logs import source
from budget_exporter.roots import Roots
from tests.integration.rig_containers import IMAGE, ContainerRig, python

pytestmark = pytest.mark.real_part("containers")

DEADLINE = 60.0
WRITER = """
import sys, time
number, last, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
while number < last:
    print("line", number, file=sys.stderr if number % 3 == 0 else sys.stdout, flush=True)
    number += 1
    time.sleep(pause)
time.sleep(600)
"""


@pytest.fixture(params=["podman", "docker"])
def rig(request: pytest.FixtureRequest) -> ContainerRig:
    found: ContainerRig = request.getfixturevalue(f"{request.param}_rig")
    return found


@pytest.fixture
def run(rig: ContainerRig, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Give a function that runs a program in a container of this test's own name, and returns that name."""
    name = f"log-{abs(hash(request.node.name)) % 10**8}"

    def start(*argv: str, options: tuple[str, ...] = ()) -> str:
        mounts = [f"--volume={mount}" for mount in rig.mounts]
        rig.cli(
            "run", "--detach", f"--name={name}", "--network=host", "--stop-signal=KILL", *mounts, *options, IMAGE, *argv
        )
        return name

    yield start
    if rig.service is None:
        rig.start_service()
    rig.remove(name)


class Following:
    """Read as the sidecar does: again after an error, after the last cursor."""

    def __init__(self, rig: ContainerRig, name: str) -> None:
        self._source = source(Roots(rootfs=rig.rootfs))
        self._target = LogTarget("tiny", container=name)
        self.cursor: str | None = None
        self.records: list[Record] = []
        self.errors: list[str] = []
        self.caught_up = asyncio.Event()

    async def follow(self) -> None:
        while True:
            try:
                batches = self._source.batches(self._target, self.cursor)
                async with aclosing(batches):  # type: ignore[type-var]  # generators
                    async for batch in batches:
                        self._take(batch)
            except SourceError as error:
                self.errors.append(str(error))
                await asyncio.sleep(0.05)

    def _take(self, batch: Sequence[Record]) -> None:
        if batch:
            self.records += batch
            self.cursor = batch[-1].cursor
        else:
            self.caught_up.set()

    @property
    def lines(self) -> list[str]:
        return [record.data.decode() for record in self.records]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                while not holds():  # noqa: ASYNC110 - what is waited for comes from another program
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{what}; {len(self.records)} lines, {self.lines[-3:]}, {self.errors[-3:]}") from None

    async def count(self, number: int) -> None:
        await self.until(lambda: len(self.records) >= number, f"{number} lines")


@asynccontextmanager
async def following(log: Following) -> AsyncIterator[Following]:
    task = asyncio.ensure_future(log.follow())
    try:
        yield log
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def writer(first: int, last: int, pause: float = 0.002) -> tuple[str, ...]:
    return (python(), "-c", WRITER, str(first), str(last), str(pause))


def kept_by(rig: ContainerRig, name: str, descriptor: int) -> list[str]:
    """Return the lines of one stream that the daemon has, as its own program shows them."""
    shown = subprocess.run([*rig.client, "logs", name], capture_output=True, env=rig.environ, check=True)
    return (shown.stdout if descriptor == 1 else shown.stderr).decode().splitlines()


async def test_every_line_comes_once_while_the_service_and_the_exporter_are_restarted(
    rig: ContainerRig, run: Callable[..., str]
) -> None:
    """
    The container goes on meanwhile; neither the lines nor their order suffer.

    dockerd itself may lose the line it has in hand when it is ended: what it has kept is what there is to be read.
    """
    name = run(*writer(0, 4000))
    log = Following(rig, name)
    for _ in range(2):
        async with following(log):
            before = len(log.records)
            await log.until(lambda at=before: len(log.records) > at + 200, "lines come")  # type: ignore[misc]
            await asyncio.to_thread(rig.stop_service)
            await log.until(lambda: bool(log.errors), "the missing service is told")
            await asyncio.to_thread(rig.start_service)
            log.errors.clear()
    async with following(log):
        await log.until(lambda: "line 3999" in log.lines[-3:], "the last line")
        await log.until(log.caught_up.is_set, "caught up")
    kept = {
        "stdout": await asyncio.to_thread(kept_by, rig, name, 1),
        "stderr": await asyncio.to_thread(kept_by, rig, name, 2),
    }
    for stream, lines in kept.items():
        assert [record.data.decode() for record in log.records if record.stream == stream] == lines
    assert len(log.lines) >= 4000 - (2 if rig.runtime == "docker" else 0)
    times = [record.at for record in log.records]
    assert None not in times


async def test_a_container_that_is_restarted_and_one_made_anew_under_its_name_are_followed_on(
    rig: ContainerRig, run: Callable[..., str]
) -> None:
    name = run(*writer(0, 50))
    async with following(Following(rig, name)) as log:
        await log.count(50)
        await asyncio.to_thread(rig.cli, "restart", "--time=0", name)
        await log.count(100)
        await asyncio.to_thread(rig.remove, name)
        await asyncio.to_thread(run, *writer(50, 80))
        await log.count(130)
        await asyncio.to_thread(rig.cli, "stop", "--time=0", name)
        log.caught_up.clear()
        await log.until(log.caught_up.is_set, "caught up")
    expected = sorted([*range(50), *range(50), *range(50, 80)])
    assert sorted(int(line.split()[1]) for line in log.lines) == expected
    assert log.errors == []


async def test_the_last_words_of_a_container_come_though_it_did_not_end_the_line_and_is_started_again(
    rig: ContainerRig, run: Callable[..., str]
) -> None:
    name = run("sh", "-c", "echo first; printf 'last words'")
    async with following(Following(rig, name)) as log:
        await log.count(2)
        await asyncio.to_thread(rig.cli, "start", name)
        await log.count(4)
    again = Following(rig, name)
    again.cursor = log.cursor
    async with following(again):
        await again.until(again.caught_up.is_set, "caught up")
    assert log.lines == ["first", "last words", "first", "last words"]
    assert again.lines == []


async def test_a_long_line_and_a_terminal_s_lines_come_whole(rig: ContainerRig, run: Callable[..., str]) -> None:
    code = (
        "import time; print('x' * 50_000, flush=True); print('10%\\r20%', flush=True); print('next'); time.sleep(600)"
    )
    name = run(python(), "-uc", code, options=("--tty",))
    async with following(Following(rig, name)) as log:
        await log.count(3)
    assert log.lines == ["x" * 50_000, "10%\r20%", "next"]
    rig.remove(name)
    name = run(python(), "-uc", code)
    async with following(Following(rig, name)) as log:
        await log.count(3)
    assert log.lines == ["x" * 50_000, "10%\r20%", "next"]


async def test_a_service_that_hangs_is_told_and_nothing_is_lost(rig: ContainerRig, run: Callable[..., str]) -> None:
    name = run(*writer(0, 400, 0.01))
    async with following(Following(rig, name)) as log:
        await log.count(20)
        assert rig.service is not None
        rig.service.send_signal(signal.SIGSTOP)
        try:
            await log.until(lambda: bool(log.errors), "the hanging service is told")
        finally:
            rig.service.send_signal(signal.SIGCONT)
        await log.count(400)
    assert "no answer within 5 s" in log.errors[0]
    assert sorted(int(line.split()[1]) for line in log.lines) == list(range(400))


async def test_the_death_of_an_engine_in_a_container_is_read(rig: ContainerRig, run: Callable[..., str]) -> None:
    pids = boot_log.Pids(11, 12, (30, 31))
    lines = [line for _, line in (*boot_log.knife_edge(pids), *boot_log.first_request_oom(pids))]
    name = run(python(), "-c", "import sys; print(sys.argv[1])", "\n".join(lines))
    async with following(Following(rig, name)) as log:
        await log.count(len(lines))
    reader = BootReader()
    reader.feed(log.records)
    (failure,) = reader.take_failures()
    assert (failure.cause, failure.rank, failure.free and failure.free.bytes) == ("first_request_oom", 0, 0)


async def test_only_what_was_written_since_the_engine_s_start_is_read(
    rig: ContainerRig, run: Callable[..., str]
) -> None:
    name = run(*writer(0, 200, 0.02))
    async with following(Following(rig, name)) as log:
        await log.count(200)
    since = (log.records[150].at or 0.0) + 0.999
    batches = source(Roots(rootfs=rig.rootfs)).batches(LogTarget("tiny", container=name, since=since), None)
    async with aclosing(batches), asyncio.timeout(DEADLINE):  # type: ignore[type-var]
        first = await anext(batches)
    assert since - 2 <= (first[0].at or 0.0) <= since


async def test_a_container_that_is_not_there_is_an_error_that_names_it(rig: ContainerRig) -> None:
    log = Following(rig, "nobody")
    async with following(log):
        await log.until(lambda: bool(log.errors), "an error")
    assert log.errors[0].endswith("there is no container nobody")
