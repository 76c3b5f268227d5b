"""
TPU chips, by what libtpu tells inside the process that holds them, or by the device plugin of a Kubernetes node.

libtpu's service counts by device as the runtime numbers them (a core where a chip has two): ``accel0``, ``accel1``, …
The device plugin counts by chip; where a chip is two devices its figure is of both, and then its key is ``chip0``.
Neither tells which process holds what. Nobody at the ports is no fault: no process uses the chips, and there is no
figure.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping

from budget_exporter.devices import _tpu_plugin
from budget_exporter.devices._tpu_listing import TpuHost, found
from budget_exporter.devices._tpu_runtime import ChipMemory, ExtraMissingError, TpuRuntime
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceIdentity, DeviceReport, DeviceSample, MemorySample
from budget_exporter.roots import Roots

__all__ = ["TpuSource", "ports", "source"]

_FIRST_PORT = 8431
_PLUGIN = "localhost:2112"
_CALL_LIMIT = 1.0
_RELIST_SECONDS = 30.0
_TWO_DEVICES = frozenset({"TPU v2", "TPU v3", "TPU7x"})
"""Chips that are two devices to the runtime. Source: PyPI tpu-info 0.14.2, ``device.py``."""


def source(
    roots: Roots,
    interval: float = 1.0,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    environ: Mapping[str, str] = os.environ,
    limit: float = _CALL_LIMIT,
) -> TpuSource:
    """
    Return the source of the TPU chips of this host.

    ``interval`` and ``limit`` are the seconds between two reads and for each call, ``clock`` gives Unix time and
    ``monotonic`` a time that never jumps. Of ``environ``, our own, it takes ``TPU_RUNTIME_METRICS_PORTS`` (as libtpu
    does; by default 8431 and on, one for each chip) and ``TPU_DEVICE_PLUGIN_ADDR`` (by default localhost:2112).
    """
    return TpuSource(roots, interval, clock, monotonic, environ, limit)


def ports(environ: Mapping[str, str], chips: int) -> list[int]:
    """
    Return the ports at which libtpu's service may listen.

    ``chips`` is their number on this host: without ``TPU_RUNTIME_METRICS_PORTS`` there are as many ports from 8431 on,
    as Google's virtual machines set it for a process a chip. Raise SourceError where the variable is no list of ports.
    """
    given = environ.get("TPU_RUNTIME_METRICS_PORTS", "")
    if not given:
        return list(range(_FIRST_PORT, _FIRST_PORT + chips))
    words = [word.strip() for word in given.split(",")]
    if not all(re.fullmatch("[0-9]{1,5}", word) and 0 < int(word) < 1 << 16 for word in words):
        raise SourceError(f"TPU_RUNTIME_METRICS_PORTS: not a list of ports: {given[:64]!r}")
    return sorted({int(word) for word in words})


class TpuSource:
    """Sample every TPU chip; all in one event loop."""

    name = "tpu"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        environ: Mapping[str, str],
        limit: float,
    ) -> None:
        self.interval = interval
        self._roots = roots
        self._clock = clock
        self._monotonic = monotonic
        self._environ = environ
        self._limit = limit
        self._host: TpuHost | None = None
        self._listing: asyncio.Future[TpuHost | None] | None = None
        self._listed: float | None = None
        self._runtimes: dict[int, TpuRuntime] = {}

    async def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - nobody tells which process holds what
        """
        Return one sample of every device that a runtime or the plugin tells of.

        A host without a TPU, and one whose chips no process uses, is an empty report and no fault. A service that
        hangs, or says what no memory can be, is a fault. Raise SourceError where it cannot be looked for a TPU.
        """
        host = await self._look()
        if host is None:
            return DeviceReport()
        told, wrong = await self._ask_runtimes(host)
        faults = [str(error) for error in wrong]
        if told or not all(isinstance(error, ExtraMissingError) for error in wrong):
            samples = [self._sample(f"accel{chip.number}", "libtpu", host, chip) for chip in told]
            return DeviceReport(tuple(samples), tuple(faults))
        told, unsaid = await self._ask_plugin()
        prefix = "chip" if host.model in _TWO_DEVICES else "accel"
        samples = [self._sample(f"{prefix}{chip.number}", "tpu_device_plugin", host, chip) for chip in told]
        # Where the plugin tells, gRPC is not needed.
        return DeviceReport(tuple(samples), tuple(unsaid if told else [*faults, *unsaid]))

    def close(self) -> None:
        """Let go of the connections."""
        for runtime in self._runtimes.values():
            runtime.close()
        self._runtimes.clear()

    async def _look(self) -> TpuHost | None:
        """Look for a TPU now and then, in a thread: a read of sysfs can hang. Never start a second look meanwhile."""
        now = self._monotonic()
        if self._listed is not None and now - self._listed < _RELIST_SECONDS:
            return self._host
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(asyncio.to_thread(found, self._roots.sysfs, self._roots.rootfs))
        try:
            async with asyncio.timeout(self._limit):
                self._host = await asyncio.shield(self._listing)
        except TimeoutError:
            raise SourceError(f"{self._roots.sysfs}: the list of PCI devices does not answer") from None
        self._listed = now
        return self._host

    async def _ask_runtimes(self, host: TpuHost) -> tuple[list[ChipMemory], list[SourceError]]:
        """Ask the service at every port; a device that two of them tell of is none: each counts its own."""
        wanted = ports(self._environ, host.chips)
        for port in self._runtimes.keys() - set(wanted):
            self._runtimes.pop(port).close()
        for port in wanted:
            self._runtimes.setdefault(port, TpuRuntime(f"localhost:{port}", self._limit))
        chips: dict[int, ChipMemory] = {}
        twice: set[int] = set()
        wrong: list[SourceError] = []
        for answer in await asyncio.gather(*(self._runtimes[port].read() for port in wanted), return_exceptions=True):
            if isinstance(answer, SourceError):
                wrong.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                wrong.extend(map(SourceError, answer[1]))
                twice.update(chip.number for chip in answer[0] if chip.number in chips)
                chips.update((chip.number, chip) for chip in answer[0])
        wrong.extend(SourceError(f"device {number}: told by two services") for number in sorted(twice))
        return [chips[number] for number in sorted(chips.keys() - twice)], wrong

    async def _ask_plugin(self) -> tuple[list[ChipMemory], list[str]]:
        """Ask the device plugin; that it is not at its usual port is no fault where nobody said it is there."""
        said = self._environ.get("TPU_DEVICE_PLUGIN_ADDR", "")
        address = said or _PLUGIN
        try:
            text = await _tpu_plugin.ask(address, self._limit)
            if text is None:
                raise SourceError(f"{address}: nobody listens")  # noqa: TRY301 - told as any other failure is
            return _tpu_plugin.parsed(address, text)
        except SourceError as error:
            return [], [str(error)] if said else []

    def _sample(self, device: str, sampler: str, host: TpuHost, chip: ChipMemory) -> DeviceSample:
        identity = DeviceIdentity(
            device=device,
            platform="tpu",
            model=host.model,
            driver=host.driver,
            sampler=sampler,
            order=chip.number,
        )
        return DeviceSample(identity, MemorySample(self._clock(), chip.size, chip.used))
