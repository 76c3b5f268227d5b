"""Ask systemd over the system bus: one connection, shared by every unit that is watched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budget_exporter.errors import SourceError

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

__all__ = ["BusUnavailableError", "SystemBus", "unit_path"]

_SYSTEMD = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_BUS = "org.freedesktop.DBus"
_PROPERTIES = f"{_BUS}.Properties"
_ASKED = (
    ("Unit", "LoadState"),
    ("Unit", "ActiveState"),
    ("Unit", "SubState"),
    ("Service", "NRestarts"),
    ("Service", "Result"),
    ("Service", "ExecMainCode"),
    ("Service", "ExecMainStatus"),
    ("Service", "Restart"),
    ("Unit", "StartLimitBurst"),
    ("Unit", "ActiveExitTimestampMonotonic"),
    ("Service", "ExecMainStartTimestampMonotonic"),
    ("Service", "ExecMainExitTimestampMonotonic"),
)


class BusUnavailableError(SourceError):
    """There is no bus to be had: dbus-fast is not installed, nobody listens, or we are refused."""


class _RefusedError(SourceError):
    """The other side answered with an error."""


class SystemBus:
    """
    A connection to the system bus at ``socket``, opened for the first unit watched and closed after the last.

    Every call is given up after ``timeout`` seconds: systemd answers within a millisecond, or not at all.
    """

    def __init__(self, socket: Path, timeout: float = 5.0) -> None:
        self._socket = socket
        self._timeout = timeout
        self._bus: MessageBus | None = None
        self._closed: asyncio.Task[None] | None = None
        self._changed: dict[str, list[asyncio.Event]] = {}
        self._lock = asyncio.Lock()

    @property
    def lost(self) -> bool:
        """Return whether the connection is gone; then nothing more is heard."""
        return self._bus is None or not self._bus.connected

    @contextlib.asynccontextmanager
    async def watching(self, unit: str) -> AsyncIterator[asyncio.Event]:
        """
        Give an event that is set whenever a property of ``unit`` changes, and when the connection is lost.

        Raise BusUnavailableError where there is no connection to be had, SourceError where systemd does not answer.
        """
        changed, path = asyncio.Event(), unit_path(unit)
        async with self._lock:
            if self.lost:
                await self._connect()
            bus = self._bus
            self._changed.setdefault(path, []).append(changed)
        try:
            await self._match("AddMatch", path)
            yield changed
        finally:
            async with self._lock:
                await self._leave(bus, path, changed)

    async def properties(self, unit: str) -> dict[str, object]:
        """
        Return what systemd says of ``unit`` now, by property; absent where the unit has no such property.

        Only these few are asked for: a unit's Environment, which may hold keys, never crosses the bus.
        Raise SourceError where systemd does not answer.
        """
        path = unit_path(unit)
        asked = [self._call(path, _PROPERTIES, "Get", "ss", [f"{_SYSTEMD}.{kind}", name]) for kind, name in _ASKED]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[str, object] = {}
        for (kind, name), reply in zip(_ASKED, replies, strict=True):
            # A unit that is no service has no NRestarts; that a unit has no state is an error.
            if isinstance(reply, _RefusedError) and kind == "Service":
                continue
            if isinstance(reply, BaseException):
                raise reply
            found[name] = reply[0].value
        return found

    async def _connect(self) -> None:
        try:
            from dbus_fast.aio import MessageBus  # noqa: PLC0415 - an extra: costs nothing where systemd is off
        except ImportError as error:
            raise BusUnavailableError("dbus-fast is not installed") from error
        bus = MessageBus(bus_address=f"unix:path={self._socket}")
        try:
            await asyncio.wait_for(bus.connect(), self._timeout)
        except Exception as error:
            # What a refused or broken handshake raises depends on dbus-fast's release.
            bus.disconnect()
            raise BusUnavailableError(f"{self._socket}: {str(error) or type(error).__name__}") from error
        except BaseException:
            bus.disconnect()
            raise
        bus.add_message_handler(self._hear)
        self._bus = bus
        self._closed = asyncio.create_task(self._wait(bus), name="system bus")
        try:
            await self._call(_PATH, f"{_SYSTEMD}.Manager", "Subscribe")
        except BaseException:
            bus.disconnect()
            self._bus = None
            raise

    async def _wait(self, bus: MessageBus) -> None:
        """Wake everyone once the connection has ended, however it did."""
        with contextlib.suppress(Exception):
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # untyped in dbus-fast
        for event in [event for events in self._changed.values() for event in events]:
            event.set()

    def _hear(self, message: Any) -> None:
        for event in self._changed.get(message.path, ()) if message.member == "PropertiesChanged" else ():
            event.set()

    async def _leave(self, bus: MessageBus | None, path: str, changed: asyncio.Event) -> None:
        events = self._changed[path]
        events.remove(changed)
        if not events:
            del self._changed[path]
        if self._bus is not bus or self.lost:
            return
        if self._changed:
            with contextlib.suppress(SourceError):
                await self._match("RemoveMatch", path)
            return
        assert self._bus is not None  # noqa: S101 - told by self.lost
        self._bus.disconnect()
        self._bus = None

    async def _match(self, verb: str, path: str) -> None:
        rule = f"type='signal',sender='{_SYSTEMD}',interface='{_PROPERTIES}',member='PropertiesChanged',path='{path}'"
        await self._call("/org/freedesktop/DBus", _BUS, verb, "s", [rule], destination=_BUS)

    async def _call(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: list[Any] | None = None,
        *,
        destination: str = _SYSTEMD,
    ) -> list[Any]:
        from dbus_fast import Message, MessageType  # noqa: PLC0415 - as above

        if self._bus is None:
            raise SourceError(f"{self._socket}: not connected")
        message = Message(destination, path, interface, member, signature=signature, body=body or [])
        call: Callable[[Message], Any] = self._bus.call
        try:
            reply = await asyncio.wait_for(call(message), self._timeout)
        except TimeoutError as error:
            raise SourceError(f"{self._socket}: no answer to {member} within {self._timeout:g} s") from error
        except Exception as error:
            # A connection that ends under a call shows as one of many exceptions.
            raise SourceError(f"{self._socket}: {str(error) or type(error).__name__}") from error
        if reply is None:
            raise SourceError(f"{self._socket}: no reply to {member}")
        if reply.message_type is MessageType.ERROR:
            raise _RefusedError(f"{self._socket}: {member}: {reply.error_name}")
        return list(reply.body)


def unit_path(unit: str) -> str:
    """
    Return the object path of a unit: everything but ASCII letters and digits (and a leading digit) as ``_`` and hex.

    Source: systemd ``src/shared/bus-util``/sd-bus ``bus_label_escape``.
    """
    escaped = "".join(
        char
        if char.isascii() and char.isalnum() and not (char.isdigit() and at == 0)
        else "".join(f"_{byte:02x}" for byte in char.encode())
        for at, char in enumerate(unit)
    )
    return f"{_PATH}/unit/{escaped or '_'}"
