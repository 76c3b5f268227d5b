"""
AWS's neuron-monitor: which process holds what of each Neuron device, and a second opinion on the driver's figures.

Off unless asked for: the tool opens the devices. One that runs for the whole node is asked over loopback
(``sources: neuron_monitor: url:``); only without an address is one started here. Its figures are what each runtime
says of itself, so that they stay below the driver's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from budget_exporter.devices._monitor_child import MonitorChild, program
from budget_exporter.devices._monitor_reading import Reading, from_page, report
from budget_exporter.devices._pid_namespace import shows_host_pids
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots

if TYPE_CHECKING:
    import aiohttp

__all__ = ["NeuronMonitorSource", "source"]

LARGEST = 1 << 20
"""Bytes of a page; some 20 kB a host are usual."""
_LATE = 3.0
"""Periods after which what a child has said last is old."""
_PATIENCE = 4.0
"""Seconds a read waits for the first word of a child."""
_OK = 200


def source(
    roots: Roots,
    interval: float = 5.0,
    clock: Callable[[], float] = time.time,
    url: str | None = None,
    path: str | None = None,
) -> NeuronMonitorSource:
    """
    Return the source; asynchronous, asked every ``interval`` seconds.

    ``url`` is the page of a neuron-monitor-prometheus on this host, ``path`` the program to start where there is none,
    by default neuron-monitor from PATH or where AWS's package puts it. ``clock`` gives Unix time.
    """
    return NeuronMonitorSource(roots, interval, clock, url, path)


class NeuronMonitorSource:
    """Ask for the page, or keep a child; asynchronous."""

    name = "neuron_monitor"

    def __init__(
        self, roots: Roots, interval: float, clock: Callable[[], float], url: str | None, path: str | None
    ) -> None:
        self.interval = interval
        self._procfs = roots.procfs
        self._clock = clock
        self._url = url
        self._path = path
        self._child: MonitorChild | None = None
        self._host_pids: bool | None = None

    async def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - it tells of all runtimes
        """
        Return the processes by device, and the use by bank where that can be compared.

        Raise SourceError where neither a page nor a child says anything, or nothing new.
        """
        reading = await (self._asked(self._url) if self._url else self._heard())
        if self._host_pids is None:
            self._host_pids = await asyncio.to_thread(shows_host_pids, self._procfs)
        return report(reading, host_pids=self._host_pids)

    def close(self) -> None:
        """Ask the child to end."""
        if self._child is not None:
            self._child.close()

    async def _heard(self) -> Reading:
        if self._child is None:
            path = self._path or program()
            if path is None:
                raise SourceError("neuron-monitor is not installed, and no url is configured")
            self._child = MonitorChild(path, self.interval, self._clock)
        reading = await self._child.newest(_PATIENCE)
        if self._child.trouble:
            raise SourceError(self._child.trouble)
        if reading is None:
            raise SourceError("neuron-monitor: has said nothing yet")
        if self._clock() - reading.at > _LATE * self.interval:
            raise SourceError("neuron-monitor: has said nothing for a while")
        return reading

    async def _asked(self, url: str) -> Reading:
        import aiohttp  # noqa: PLC0415 - costs nothing where no page is asked

        # A connection each time, no cookie, no proxy, no redirect: nothing but one GET on loopback.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "budget-exporter", "Accept-Encoding": "identity"},
            auto_decompress=False,
        ) as session:
            try:
                async with session.get(url, allow_redirects=False) as answer:
                    return from_page(await _text(answer), self._clock())
            except (aiohttp.ClientError, OSError) as error:
                raise SourceError(f"neuron-monitor: {_why(error)}") from error


async def _text(answer: aiohttp.ClientResponse) -> str:
    if answer.status != _OK:
        raise SourceError(f"neuron-monitor: its page answers {answer.status}")
    data = bytearray()
    async for piece in answer.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > LARGEST:
            raise SourceError(f"neuron-monitor: a page of more than {LARGEST} bytes")
    return data.decode(errors="replace")


def _why(error: Exception) -> str:
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or type(error).__name__
