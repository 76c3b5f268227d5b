"""
libtpu's metrics service, one for each process that holds chips: asked by gRPC, each call within a time limit.

The service lives in the process: without one there is nobody at its port, which is no fault. So the port is knocked at
first, and gRPC is imported, and a channel opened, only where somebody listens. A channel that failed is given up
rather than left to gRPC's own back-off, which could make a restarted engine unseen for two minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from budget_exporter.devices._tpu_messages import METHOD, SIZE, USED, messages
from budget_exporter.errors import SourceError

__all__ = ["ChipMemory", "ExtraMissingError", "TpuRuntime"]

_LARGEST = (1 << 63) - 1
_NOBODY = frozenset({errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})
_ERRNO = re.compile(r"\[Errno ([0-9]+)\]")
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is no way to a port of this host
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 1 << 20),
)


@dataclass(frozen=True, slots=True)
class ChipMemory:
    """One device as the runtime numbers them: ``size`` and ``used`` in bytes."""

    number: int
    size: int
    used: int


class ExtraMissingError(SourceError):
    """Somebody listens, and gRPC is not installed to ask."""


class _HungUpError(Exception):
    """The connection is gone."""


class TpuRuntime:
    """The service at one ``address`` (``HOST:PORT``); each call is given ``limit`` seconds."""

    def __init__(self, address: str, limit: float) -> None:
        self.address = address
        self._limit = limit
        self._channel: Any = None
        self._call: Any = None

    async def read(self) -> tuple[list[ChipMemory], list[str]] | None:
        """
        Return the devices of the process that listens and a sentence for each figure that cannot be true.

        None where nobody listens. Raise SourceError where somebody does and gives no answer that can be used.
        """
        if self._channel is None and not await self._opened():
            return None
        try:
            used, size = await self._ask(USED), await self._ask(SIZE)
        except _HungUpError as error:
            self.close()
            # The process ended, and its service with it, unless somebody still listens there.
            if await self._opened():
                raise SourceError(str(error)) from error
            return None
        except (SourceError, asyncio.CancelledError):
            self.close()
            raise
        return _joined(self.address, used, size)

    def close(self) -> None:
        """Let go of the channel."""
        self._channel = self._call = None  # the channel closes itself when nothing refers to it any more

    async def _opened(self) -> bool:
        """Open a channel if somebody listens."""
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(self._limit):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            raise SourceError(f"{self.address}: no connection within {self._limit:g} s") from None
        except OSError as error:
            if _nobody_there(error):
                return False
            raise SourceError(f"{self.address}: {error.strerror or error}") from error
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        try:
            aio = await asyncio.to_thread(importlib.import_module, "grpc.aio")
            request, response = await asyncio.to_thread(messages)
        except ImportError as error:
            raise ExtraMissingError(f"{self.address}: grpcio or protobuf is not installed (extra tpu)") from error
        self._channel = aio.insecure_channel(self.address, options=_OPTIONS)
        self._call = self._channel.unary_unary(
            METHOD, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        return True

    async def _ask(self, metric: str) -> Sequence[Any]:
        """Return the points of one metric."""
        grpc = importlib.import_module("grpc")
        try:
            response = await self._call(messages().request(metric_name=metric), timeout=self._limit)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise _HungUpError(f"{self.address}: {metric}: unavailable") from error
            raise SourceError(f"{self.address}: {metric}: {error.code().name.lower()}") from error
        if response.metric.name not in ("", metric):
            raise SourceError(f"{self.address}: asked for {metric}, told of {response.metric.name[:64]!r}")
        points: Sequence[Any] = response.metric.metrics
        return points


def _nobody_there(error: OSError) -> bool:
    """Return whether nobody listens; for a name with several addresses asyncio tells all their errors in one text."""
    codes = {error.errno} if error.errno is not None else {int(code) for code in _ERRNO.findall(str(error))}
    return bool(codes) and codes <= _NOBODY


def _joined(address: str, used: Sequence[Any], size: Sequence[Any]) -> tuple[list[ChipMemory], list[str]]:
    """Put use and size of each device together: the two lists are in no order."""
    faults: list[str] = []
    sizes, uses = _figures(address, "size", size, faults), _figures(address, "used", used, faults)
    chips = []
    for number, bytes_used in sorted(uses.items()):
        total = sizes.get(number)
        if total is None:
            if number not in sizes:
                faults.append(f"{address}: device {number}: use without a size")
        elif total == 0:
            faults.append(f"{address}: device {number}: size: 0, and no chip has no memory")
        elif bytes_used is not None:
            chips.append(ChipMemory(number, total, bytes_used))
    return chips, faults


def _figures(address: str, what: str, points: Sequence[Any], faults: list[str]) -> dict[int, int | None]:
    """Return the figure of each device, None after a sentence where it cannot be one."""
    figures: dict[int, int | None] = {}
    for point in points:
        attribute = point.attribute
        if attribute.key != "device-id" or attribute.value.WhichOneof("attr") != "int_attr":
            faults.append(f"{address}: {what}: a figure of no device")
            continue
        number = attribute.value.int_attr
        if not 0 <= number < 1 << 20:
            faults.append(f"{address}: {what}: no number of a device: {number}")
            continue
        figure = _figure(point.gauge)
        why = f"not a number of bytes: {figure}" if isinstance(figure, str) else ""
        if number in figures:
            why = "told twice"
        if why:
            faults.append(f"{address}: device {number}: {what}: {why}")
        figures[number] = None if isinstance(figure, str) or why else figure
    return figures


def _figure(gauge: Any) -> int | str:
    """Return bytes, or the text of what no memory can be."""
    kind = gauge.WhichOneof("value")
    if kind == "as_int" and 0 <= gauge.as_int <= _LARGEST:
        return int(gauge.as_int)
    if kind == "as_double" and gauge.as_double.is_integer() and 0 <= gauge.as_double <= _LARGEST:
        return int(gauge.as_double)
    return "nothing" if kind is None else repr(getattr(gauge, kind))[:24]
