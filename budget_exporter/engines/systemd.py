"""Follow a systemd unit: its state, how often it was restarted, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

from budget_exporter.engines._systemctl import show
from budget_exporter.engines._systemd_bus import BusUnavailableError, SystemBus
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import Supervision, UnitState
from budget_exporter.roots import Roots

__all__ = ["SystemdSupervisor", "supervision", "supervisor"]

_STATES: dict[str, UnitState] = {
    "active": "active",
    "reloading": "active",
    "refreshing": "active",
    "activating": "activating",
    "deactivating": "inactive",
    "inactive": "inactive",
    "failed": "failed",
}
"""ActiveState of systemd 252 to 257; a unit that is being stopped counts as stopped."""
_AUTO_RESTART = ("auto-restart", "auto-restart-queued")
_EXITED, _KILLED, _DUMPED = 1, 2, 3
"""ExecMainCode: CLD_EXITED, CLD_KILLED, CLD_DUMPED of waitid(2)."""
_OWN_DOING = frozenset({"watchdog", "oom-kill"})
"""Results of units that systemd itself ends: nobody has asked for that."""
_PERSISTENT = frozenset({"always", "on-failure", "on-abnormal", "on-abort"})
"""Policies (``Restart``) that make a crash no reason to stay down."""
_SIGNAL = 128
"""Added to a signal's number to make an exit code, as shells and container runtimes do."""


def supervisor(roots: Roots) -> SystemdSupervisor:
    """Return the supervisor that asks the systemd of ``roots.rootfs``."""
    return SystemdSupervisor(roots)


class SystemdSupervisor:
    """
    Units of one systemd, by its system bus; asynchronous.

    Where there is no bus for us and the watched host is our own, ``systemctl show`` is asked every ``poll`` seconds.
    ``resync`` is after how many seconds without a change the properties are read all the same.
    """

    name = "systemd"

    def __init__(self, roots: Roots, poll: float = 3.0, resync: float = 30.0, systemctl: str = "systemctl") -> None:
        self._bus = SystemBus(roots.rootfs / "run/dbus/system_bus_socket")
        self._own = roots.rootfs == Path("/")
        self._poll = poll
        self._resync = resync
        self._systemctl = systemctl

    async def watch(self, unit: str) -> AsyncIterator[Supervision]:
        """
        Yield what is said of ``unit`` now, then each change; a unit that does not exist is ``inactive``.

        Raise SourceError where systemd cannot be reached, or no longer; the caller tries again later.
        """
        try:
            async with contextlib.aclosing(self._by_bus(unit)) as changes:
                async for change in changes:
                    yield change
        except BusUnavailableError:
            if not self._own:
                raise
        async with contextlib.aclosing(self._by_program(unit)) as changes:
            async for change in changes:
                yield change

    async def _by_bus(self, unit: str) -> AsyncGenerator[Supervision, None]:
        last: Supervision | None = None
        async with self._bus.watching(unit) as changed:
            while True:
                # Cleared before reading: a change during the reading is read again. systemd repeats itself, so what
                # it says is compared, not counted.
                changed.clear()
                now = supervision(unit, await self._bus.properties(unit))
                if now != last:
                    last = now
                    yield now
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._resync)
                if self._bus.lost:
                    raise SourceError("the system bus has closed the connection")

    async def _by_program(self, unit: str) -> AsyncGenerator[Supervision, None]:
        last: Supervision | None = None
        while True:
            now = supervision(unit, await show(unit, program=self._systemctl))
            if now != last:
                last = now
                yield now
            await asyncio.sleep(self._poll)


def supervision(unit: str, properties: Mapping[str, object]) -> Supervision:
    """
    Return what a unit's properties say; values are numbers (bus) or their text (systemctl).

    ``exit_code`` is that of the main process, or 128 and the signal that ended it; None while it runs, when
    ``ExecMainCode`` is 0. A unit without a file has no restarts to count.

    systemd 252 keeps the result of the last start where it gives up starting again: that is told here by the policy
    and by as many restarts as its limit allows starts (``src/core/service.c``, service_enter_restart).
    """
    found = properties.get("LoadState") != "not-found"
    state = _STATES.get(str(properties.get("ActiveState", "")), "unknown")
    if state == "activating" and properties.get("SubState") in _AUTO_RESTART:
        state = "auto_restart"
    code, status = _number(properties.get("ExecMainCode")), _number(properties.get("ExecMainStatus"))
    exit_code = status if code == _EXITED else None
    if code in (_KILLED, _DUMPED) and status is not None:
        exit_code = _SIGNAL + status
    return Supervision(
        supervisor="systemd",
        unit=unit,
        state=state,
        nrestarts=_number(properties.get("NRestarts")) if found else None,
        exit_code=exit_code,
        result=_result(properties) if found else "",
        asked=_asked(properties),
    )


def _result(properties: Mapping[str, object]) -> str:
    result = str(properties.get("Result") or "")
    restarts, limit = _number(properties.get("NRestarts")), _number(properties.get("StartLimitBurst"))
    failed = properties.get("ActiveState") == "failed" and properties.get("Restart") in _PERSISTENT
    given_up = failed and restarts is not None and limit is not None and 0 < limit <= restarts
    return "start-limit-hit" if given_up and not _asked(properties) else result


def _asked(properties: Mapping[str, object]) -> bool | None:
    """
    Return whether somebody asked for the end of the main process, None where it has not ended or that cannot be told.

    Where they did, the unit left "active" first and its process ended then; where it ended by itself, the other way
    round. A unit that nothing refers to is forgotten by systemd, its times with it.
    """
    started, ended, left = (
        _number(properties.get(f"{name}TimestampMonotonic")) for name in ("ExecMainStart", "ExecMainExit", "ActiveExit")
    )
    state = properties.get("ActiveState")
    if state not in ("deactivating", "inactive", "failed") or not started or not left or left < started:
        return None
    if properties.get("Result") in _OWN_DOING:
        return False
    if not ended:
        return True if state == "deactivating" else None
    return left < ended


def _number(value: object) -> int | None:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None
