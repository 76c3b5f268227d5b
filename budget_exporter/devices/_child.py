"""Run a program of somebody else's, within a time limit and with limited output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budget_exporter.errors import SourceError

__all__ = ["Answer", "ask"]

_LARGEST = 1 << 20
_REAP = 0.5
"""Seconds a killed child has to be gone; one that hangs in the kernel is left to itself."""
_LOOK = 0.005


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said; ``code`` is negative where a signal ended it."""

    out: str
    complaint: str
    code: int

    @property
    def why(self) -> str:
        """Return how it ended badly, for people: the last thing it complained of, and what its end was."""
        lines = [line.strip() for line in self.complaint.splitlines() if line.strip()]
        last = lines[-1][:200] if lines else ""
        end = f"ended by signal {-self.code}" if self.code < 0 else f"exit code {self.code}" if self.code else ""
        return ": ".join(part for part in (end, last) if part)


def ask(argv: Sequence[str], environ: Mapping[str, str], limit: float) -> Answer:
    """
    Return what the program ``argv`` says with ``environ`` added to our environment; blocking.

    It is a session of its own: with it ends all it has started, after ``limit`` seconds at the latest. Raise
    SourceError where it cannot be started, does not end in time or says more than 1 MiB.
    """
    name = os.path.basename(argv[0])  # noqa: PTH119 - a name, no path
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror}") from error
    deadline = time.monotonic() + limit
    try:
        out, complaint = _listen(child, name, deadline, limit)
        while not _has_ended(child):
            if time.monotonic() > deadline:
                raise SourceError(f"{name}: no end within {limit:g} s")
            time.sleep(_LOOK)
    finally:
        _end(child)
    return Answer(out.decode(errors="replace"), complaint.decode(errors="replace"), child.returncode)


def _listen(child: subprocess.Popen[bytes], name: str, deadline: float, limit: float) -> tuple[bytes, bytes]:
    """Return both outputs once both have ended."""
    if child.stdout is None or child.stderr is None:
        raise SourceError(f"{name}: no pipes")
    heard = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in heard:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise SourceError(f"{name}: no answer within {limit:g} s")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                heard[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(heard[key.fd]) > _LARGEST:
                    raise SourceError(f"{name}: says more than {_LARGEST} bytes")
    out, complaint = heard.values()
    return bytes(out), bytes(complaint)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return whether the child has ended; its PID stays its own, so that its session can still be named by it."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's session, and let go of the pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
