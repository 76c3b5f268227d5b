"""Write the state in a thread of its own: a disk that hangs must hold up neither the Snapshots nor the end."""

from __future__ import annotations

import threading
from pathlib import Path

from budget_exporter import state
from budget_exporter.sidecar.runner import StateLog
from budget_exporter.state import State

__all__ = ["Keeper"]


class Keeper:
    """Keep the newest state in the file ``path``; one that was not written yet when the next came is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._next: State | None = None
        self._busy = False
        self._closed = False
        self._log = StateLog("state")
        self._thread = threading.Thread(target=self._loop, name="state", daemon=True)
        self._thread.start()

    def keep(self, what: State) -> None:
        """Have ``what`` written, as soon as what is being written is done."""
        with self._changed:
            self._next = what
            self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """Wait until everything is written, at most ``timeout`` seconds; return whether it is."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._next is None and not self._busy, timeout)

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None or self._closed)
                what, self._next = self._next, None
                if what is None:
                    return
                self._busy = True
            self._write(what)

    def _write(self, what: State) -> None:
        try:
            state.save(self._path, what)
        except Exception as error:  # whatever it is, the next try may do better  # noqa: BLE001
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._log.note(f"{self._path}: state cannot be written: {reason}")
        else:
            self._log.note("")
