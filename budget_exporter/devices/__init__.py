"""
What the hardware says, one file per source.

A module here is loaded by its name when it is enabled and offers ``source(roots) -> DeviceSource``.
"""

from __future__ import annotations

from typing import Protocol

from budget_exporter.facts.device import DeviceReport

__all__ = ["AsyncDeviceSource", "DeviceSource"]


class DeviceSource(Protocol):
    """Read every device of one platform once; blocking, so it is run in a thread of its own."""

    name: str
    """The module's name: flag, configuration key and ``source`` label."""
    interval: float
    """Seconds between two reads."""

    def read(self, interest: frozenset[int]) -> DeviceReport:
        """
        Return the devices that answered; ``interest`` are the PIDs whose memory is wanted.

        Raise SourceError when nothing can be read at all; a device that fails alone is a fault in the report.
        """
        ...

    def close(self) -> None:
        """Release descriptors; called once, from any thread, after the last read returned."""
        ...


class AsyncDeviceSource(Protocol):
    """Read every device of one platform once over a socket; run in a task of the event loop, within a time limit."""

    name: str
    interval: float

    async def read(self, interest: frozenset[int]) -> DeviceReport:
        """Return what a blocking source returns, and raise what it raises; never block the event loop."""
        ...

    def close(self) -> None:
        """Release the connection; called once, in the event loop, after the task was cancelled."""
        ...
