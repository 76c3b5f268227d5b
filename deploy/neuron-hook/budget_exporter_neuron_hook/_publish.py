"""
Ask the runtime's own ledger every few seconds, in a thread of its own, and write what it says to a file.

``torch.classes.neuron.Runtime().get_vnc_memory_stats()`` returns (used, free) in bytes for the logical core that this
process owns; the limit is their sum, a whole bank, also where two logical cores share one.
Source: vllm-neuron 0.2 and 0.24 ``worker/neuron_worker.py``; AWS Neuron SDK 2.25 and later ``nrt/nrt.h``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Publisher", "start"]

SCHEMA = "budget_exporter_neuron_hook/1"
FAILURES = 5
"""Calls in a row that fail or are slow, after which no more are made."""
SLOW = 1.0
"""Seconds; the call counts bytes that are counted already and takes a tenth of a millisecond."""
LAST_WRITE = 0.5
"""Seconds that the end of the process waits for a write: a folder may hang."""
FORGOTTEN = 3600.0
"""Seconds after which what a worker left behind that was killed is removed."""
_LOG = logging.getLogger("budget_exporter_neuron_hook")
_started_in: int | None = None


def start(folder: str, interval: float, worker: Any) -> None:
    """
    Begin to publish for ``worker``, whose warm-up has just returned; never raises.

    Nothing happens for a worker that is not on a Neuron device: there the call itself might initialise the runtime.
    """
    global _started_in  # noqa: PLW0603 - one thread a process, whoever asks
    try:
        if not _is_on_neuron(worker) or _started_in == os.getpid():
            return
        _started_in = os.getpid()
        Publisher(folder, interval, whose(worker)).start()
    except Exception:  # noqa: BLE001 - the engine comes first
        _LOG.debug("nothing is published", exc_info=True)


def _is_on_neuron(worker: Any) -> bool:
    """Return whether the worker says that it runs on the device, or is of a plugin that has no other way."""
    ask = getattr(worker, "_use_neuron_device", None)
    if callable(ask):
        return ask() is True
    return type(worker).__module__.partition(".")[0] == "vllm_neuron"


def whose(worker: Any) -> dict[str, int | None]:
    """
    Return rank and replica of the worker; no rank where one process owns the cores of several.

    The ledger then tells of one core, and which one is not documented.
    """
    parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
    several = getattr(parallel, "distributed_executor_backend", None) == "uni" and _int(
        getattr(parallel, "world_size", None)
    ) not in (None, 1)
    replica = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", None))
    return {"rank": None if several else _int(getattr(worker, "rank", None)), "replica": _int(replica)}


class Publisher:
    """
    One daemon thread that asks and writes.

    ``folder`` is never made: where it is missing nothing is asked either. ``own`` goes into every record. The file has
    the name of the process; it is replaced whole, so that a reader sees all of it or the one before.
    """

    def __init__(self, folder: str, interval: float, own: dict[str, int | None]) -> None:
        self._folder = Path(folder)
        self._interval = interval
        namespace = _number_or_none(lambda: Path("/proc/self/ns/pid").stat().st_ino)
        self._path = self._folder / f"vnc-{namespace or 0}-{os.getpid()}.json"
        self._record: dict[str, Any] = {
            "schema": SCHEMA,
            **own,
            "pid": os.getpid(),
            "pid_namespace": namespace,
            "start_ticks": _number_or_none(_start_ticks),
            "boot_id": _boot_id(),
            "interval": interval,
        }
        self._samples = self._in_a_row = 0
        self._runtime: Any = None
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="budget-exporter-neuron-hook", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and remove the file; what it is just writing is waited for, but not for long."""
        self._stop.set()
        waited = self._writing.acquire(timeout=LAST_WRITE)
        _remove(self._path)
        _remove(self._part)
        if waited:
            self._writing.release()

    def _run(self) -> None:
        try:
            _sweep(self._folder)
            while not self._stop.is_set() and self._in_a_row < FAILURES:
                if self._folder.is_dir():
                    self._once()
                self._stop.wait(self._interval)
            if not self._stop.is_set():
                _LOG.warning("the runtime was asked in vain %d times; it is not asked any more", FAILURES)
                _remove(self._path)
        except Exception:  # noqa: BLE001 - the engine comes first
            _LOG.debug("the hook ends", exc_info=True)

    def _once(self) -> None:
        began = time.monotonic()
        said = self._ask()
        took = time.monotonic() - began
        self._samples += 1
        self._in_a_row = self._in_a_row + 1 if "failure" in said or took > SLOW else 0
        self._write(
            {
                **self._record,
                **said,
                "at": time.time(),
                "call_seconds": round(took, 6),
                "samples": self._samples,
                # Of this thread, all that writing takes too.
                "cpu_seconds": round(time.thread_time(), 6),
            }
        )

    def _ask(self) -> dict[str, Any]:
        """Return what the ledger says, or which kind of failure kept it from saying anything."""
        try:
            if self._runtime is None:
                # The worker has it; it is not for us to bring it in.
                self._runtime = sys.modules["torch"].classes.neuron.Runtime()
            used, free = self._runtime.get_vnc_memory_stats()
            used, free = int(used), int(free)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine goes on
            self._runtime = None
            return {"failure": type(error).__name__}
        # (-1, -1) is a runtime that was never initialised; a core that is full to the last byte has 0 free.
        return {"used": used, "limit": used + free} if used >= 0 and free >= 0 else {"failure": "no figures"}

    @property
    def _part(self) -> Path:
        return self._path.with_suffix(".part")

    def _write(self, record: dict[str, Any]) -> None:
        with self._writing:
            if not self._stop.is_set():
                self._replace(record)

    def _replace(self, record: dict[str, Any]) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._part, flags, 0o644)
            try:
                os.fchmod(descriptor, 0o644)
                os.write(descriptor, json.dumps(record).encode() + b"\n")
            finally:
                os.close(descriptor)
            self._part.replace(self._path)
        except OSError:
            _LOG.debug("not written", exc_info=True)


def _sweep(folder: Path) -> None:
    """Remove the files of workers that were killed long ago; those that live write theirs anew all the time."""
    with contextlib.suppress(OSError):
        for path in folder.glob("vnc-*"):
            if time.time() - path.lstat().st_mtime > FORGOTTEN:
                _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _start_ticks() -> int:
    return int(Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _number_or_none(read: Any) -> int | None:
    try:
        return int(read())
    except (OSError, ValueError, IndexError):
        return None


def _int(value: Any) -> int | None:
    return value if type(value) is int else None
