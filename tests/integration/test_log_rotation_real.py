"""Our source of files against a real logrotate and a writer that never stops: every line once, in order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.file import source
from budget_exporter.roots import Roots
from tests.real_parts import program

pytestmark = pytest.mark.real_part("logrotate")

DEADLINE = 60.0
WRITER = """
import os, signal, sys, time
path = sys.argv[1]
hung_up = [True]
stop = []
signal.signal(signal.SIGHUP, lambda *_: hung_up.append(True))
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
number = 0
while not stop:
    if hung_up:
        hung_up.clear()
        log = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if sys.argv[2] == "append" else 0), 0o644)
    os.write(log, b"line %d of a log that is written to without end\\n" % number)
    number += 1
    time.sleep(0.0005)
print(number)
"""
REOPENED = """{log} {{
    rotate 9
    {options}
    create
    postrotate
        kill -HUP {pid}
    endscript
}}
"""
COPIED = """{log} {{
    rotate 9
    {options}
    copytruncate
    firstaction
        kill -STOP {pid}
    endscript
    lastaction
        kill -CONT {pid}
    endscript
}}
"""
"""What is written between the copy and the truncation is lost, so nothing is."""


class Writer:
    """The writer, and logrotate for what it writes."""

    def __init__(self, folder: Path, form: str, options: str, mode: str) -> None:
        self.log = folder / "engine.log"
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(self.log), mode], stdout=subprocess.PIPE, text=True
        )
        self._folder = folder
        self._text = form.format(log=self.log, options=options, pid=self._process.pid)
        self._rotate = program("logrotate")
        self._times = 0

    def rotate(self) -> None:
        """Rotate now, as many seconds after the last time as a date in the name tells apart."""
        self._times += 1
        config = self._folder / "rotate.conf"
        config.write_text(self._text.replace("@", str(1770112800 + self._times)))
        config.chmod(0o644)
        command = [self._rotate, "--force", "--state", str(self._folder / "state"), str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def stop(self) -> int:
        """Stop it and return how many lines it has written."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        out, _ = self._process.communicate(timeout=DEADLINE)
        return int(out)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Following:
    """Follow as the sidecar does: again after the last cursor."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.cursor: str | None = None
        self.records: list[Record] = []

    async def read(self, until: Callable[[list[bytes]], bool]) -> None:
        batches = source(Roots(), poll=0.02).batches(LogTarget("tiny", path=str(self._log)), self.cursor)
        async with aclosing(batches), asyncio.timeout(DEADLINE):  # type: ignore[type-var]
            async for batch in batches:
                self.records += batch
                self.cursor = batch[-1].cursor if batch else self.cursor
                if until(self.lines):
                    return

    @property
    def lines(self) -> list[bytes]:
        return [line for record in self.records for line in record.data.split(b"\n")]

    def numbers(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)  # logrotate refuses a directory that others may write to
    writers = []

    def make(form: str, options: str, mode: str = "append") -> Writer:
        writers.append(Writer(tmp_path, form, options, mode))
        return writers[-1]

    yield make
    for writer in writers:
        writer.kill()


WAYS = [
    pytest.param(REOPENED, "nocompress", "append", id="renamed"),
    pytest.param(REOPENED, "compress\n    delaycompress", "append", id="renamed, packed the next time"),
    pytest.param(REOPENED, "dateext\n    dateformat -20260203-@\n    nocompress", "append", id="renamed by date"),
    pytest.param(COPIED, "nocompress", "append", id="copied"),
    pytest.param(COPIED, "compress", "append", id="copied and packed"),
    pytest.param(COPIED, "compress\n    delaycompress", "write", id="copied under a writer that does not append"),
]


@pytest.mark.parametrize(("form", "options", "mode"), WAYS)
async def test_every_line_is_read_once_while_the_log_is_rotated(
    start: Callable[..., Writer], form: str, options: str, mode: str
) -> None:
    writer = start(form, options, mode)
    log = Following(writer.log)
    await wait_for(writer.log)
    await log.read(more_than(log, 20))
    for _ in range(5):
        reading = asyncio.ensure_future(log.read(more_than(log, 300)))
        await asyncio.to_thread(writer.rotate)
        await reading
    written = await asyncio.to_thread(writer.stop)
    await log.read(lambda lines: len(lines) >= written)
    assert log.numbers() == list(range(written))
    assert not any(record.cut for record in log.records)


@pytest.mark.parametrize(("form", "options", "mode"), WAYS)
async def test_every_line_is_read_once_though_the_log_was_rotated_while_nobody_looked(
    start: Callable[..., Writer], form: str, options: str, mode: str
) -> None:
    writer = start(form, options, mode)
    log = Following(writer.log)
    await wait_for(writer.log)
    for times in (1, 3):
        await log.read(more_than(log, 300))
        for _ in range(times):
            await asyncio.sleep(0.1)  # something to be rotated
            await asyncio.to_thread(writer.rotate)
    written = await asyncio.to_thread(writer.stop)
    await log.read(lambda lines: len(lines) >= written)
    assert log.numbers() == list(range(written))
    assert not any(record.cut for record in log.records)


def more_than(log: Following, lines: int) -> Callable[[list[bytes]], bool]:
    wanted = len(log.lines) + lines
    return lambda found: len(found) > wanted


async def wait_for(log: Path) -> None:
    async with asyncio.timeout(DEADLINE):
        while not log.exists():  # noqa: ASYNC110, ASYNC240 - another process writes it
            await asyncio.sleep(0.01)


async def test_a_log_that_was_moved_away_is_waited_for(start: Callable[..., Writer]) -> None:
    """It is no error: the directory is there."""
    writer = start(REOPENED, "nocompress")
    await wait_for(writer.log)
    written = writer.stop()
    log = Following(writer.log)
    await log.read(lambda lines: len(lines) >= written)
    writer.log.rename(writer.log.with_name("moved"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(log.read(lambda _: False), 1)
    assert log.numbers() == list(range(written))
