"""A neuron-monitor of our own: one long-lived child whose lines are read as they come, started again with patience."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Awaitable, Callable, Iterator

from budget_exporter.devices._monitor_reading import Reading, from_json
from budget_exporter.errors import SourceError

__all__ = ["MonitorChild", "program"]

LARGEST_LINE = 8 << 20
"""Bytes of one document, which grows with cores and loaded models."""
_INSTALLED = "/opt/aws/neuron/bin"
_FIRST_WAIT, _LONGEST_WAIT = 2.0, 300.0
_GRACE = 2.0
_COMPLAINT, _COMPLAINT_WAIT = 200, 0.1


def program() -> str | None:
    """Return the path of neuron-monitor, None where it is not installed."""
    return shutil.which("neuron-monitor", path=os.pathsep.join((os.environ.get("PATH", os.defpath), _INSTALLED)))


class MonitorChild:
    """
    Keep one child running and its newest reading; used in one event loop.

    It opens the devices, of which the driver allows 16 processes each, and one that is killed and started again without
    end would take their places: after each end the wait is twice as long, up to five minutes, until it has said
    something again.
    """

    def __init__(
        self,
        path: str,
        period: float,
        clock: Callable[[], float] = time.time,
        *,
        first_wait: float = _FIRST_WAIT,
        largest_line: int = LARGEST_LINE,
    ) -> None:
        self._path = path
        self._period = period
        self._clock = clock
        self._first_wait = self._wait = first_wait
        self._largest_line = largest_line
        self._process: Process | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.reading: Reading | None = None
        self.trouble = ""
        """Why there is no newer reading; empty while there is nothing to say."""
        self.starts = 0

    async def newest(self, patience: float) -> Reading | None:
        """Return the newest reading; start the child where that was not done, and wait a while for its first word."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="neuron-monitor")
        if self.reading is None and not self.trouble:
            await _within(patience, self._news.wait())
        return self.reading

    def close(self) -> None:
        """Ask the child to end, and wait for nothing."""
        if self._task is not None:
            self._task.cancel()
        self._signal(signal.SIGTERM)

    async def _keep(self) -> None:
        while True:
            try:
                await self._run()
            except SourceError as error:
                self._note(str(error))
            except OSError as error:
                self._note(f"neuron-monitor: {error.strerror}")
            finally:
                await self._end()
            await asyncio.sleep(self._wait)
            self._wait = min(2 * self._wait, _LONGEST_WAIT)

    async def _run(self) -> None:
        """Run one child to its end; raise SourceError that says how it ended."""
        with _configuration(self._period) as configuration:
            loop = asyncio.get_running_loop()
            # Not create_subprocess_exec: of what that gives, a pipe with too long a line in it is never closed.
            self._transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(self._largest_line, loop),
                self._path,
                "-c",
                f"/proc/self/fd/{configuration}",
                stdin=asyncio.subprocess.DEVNULL,
                # Its own limit in AWS's deployment; without it the tool was known to grow until it was killed.
                env={"PATH": os.environ.get("PATH", os.defpath), "GOMEMLIMIT": "160MiB"},
                pass_fds=(configuration,),
                start_new_session=True,
            )
            self._process = Process(self._transport, protocol, loop)
            self.starts += 1
            if self._process.stdout is None or self._process.stderr is None:
                raise SourceError("neuron-monitor: no pipes")
            complaint = asyncio.create_task(_drained(self._process.stderr))
            try:
                await self._listen(self._process.stdout)
            finally:
                await asyncio.wait({complaint}, timeout=_COMPLAINT_WAIT)
                complaint.cancel()
            code = await self._process.wait()
            said = complaint.result() if complaint.done() and not complaint.cancelled() else ""
            raise SourceError(f"neuron-monitor: ended with {code}{': ' if said else ''}{said}")

    async def _listen(self, lines: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                raise SourceError(f"neuron-monitor: a line of more than {self._largest_line} bytes") from None
            if not line:
                return
            try:
                self.reading = from_json(line, self._clock())
            except SourceError as error:
                self._note(str(error))
                continue
            self._wait = self._first_wait
            self.trouble = ""
            self._news.set()

    def _note(self, trouble: str) -> None:
        self.trouble = trouble
        self._news.set()

    async def _end(self) -> None:
        """End the child and all it started, gently first; one that hangs in the kernel is left to itself."""
        if self._process is None:
            return
        try:
            self._signal(signal.SIGTERM)
            if not await _within(_GRACE, self._process.wait()):
                self._signal(signal.SIGKILL)
                await _within(_GRACE, self._process.wait())
        finally:
            if self._transport is not None:
                self._transport.close()
            self._process = self._transport = None

    def _signal(self, number: signal.Signals) -> None:
        # One that was waited for has given its number back.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


@contextlib.contextmanager
def _configuration(period: float) -> Iterator[int]:
    """Give a descriptor of a file in memory that asks for memory only, every ``period`` seconds."""
    groups = {
        "period": f"{period:g}s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "memory_used"}]}],
        "system_metrics": [],
    }
    descriptor = os.memfd_create("neuron-monitor.conf")
    try:
        os.write(descriptor, json.dumps(groups).encode())
        yield descriptor
    finally:
        os.close(descriptor)


async def _within(seconds: float, work: Awaitable[object]) -> bool:
    """Return whether ``work`` was done in time; unlike wait_for of Python 3.11 it swallows no cancellation."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


async def _drained(errors: asyncio.StreamReader) -> str:
    """Read to the end what a child complains of; return the beginning of the last of it."""
    last = b""
    while piece := await errors.read(1 << 12):
        last = (last + piece)[-4096:]
    lines = [line.strip() for line in last.decode(errors="replace").splitlines() if line.strip()]
    return "".join(letter for letter in lines[-1][:_COMPLAINT] if letter.isprintable()) if lines else ""
