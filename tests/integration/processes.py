"""Real processes for the tests: started on free ports of loopback, waited for, ended by their id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
LISTENING = re.compile(r"listening on ([^\s\[\]]+?):(\d+)")
Labels = frozenset[tuple[str, str]]


def until(look: Callable[[], T | None], what: str, limit: float = 30.0, pause: float = 0.05) -> T:
    """Return what ``look``, asked every ``pause`` s, finds once it is truthy; fail with ``what`` after ``limit`` s."""
    deadline = time.monotonic() + limit
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {limit:.0f} s: {what}")
        time.sleep(pause)


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(url: str, headers: dict[str, str] | None = None, timeout: float = 10.0) -> tuple[int, str]:
    """Return status and body of a GET; an error status is a status."""
    request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - loopback only
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - loopback only
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Exporter:
    """A real exporter in a process of its own."""

    def __init__(self, log: Path, words: Sequence[str], *, prefix: Sequence[str] = ()) -> None:
        self.log_file = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "budget_exporter", *words], stderr=output, stdout=output
            )
        self._address: tuple[str, int] | None = None
        self._entered = bool({"nsenter", "unshare"} & set(prefix))

    @property
    def log(self) -> str:
        """Return what it has written so far."""
        return self.log_file.read_text(errors="replace")

    @property
    def address(self) -> str:
        """Return host:port once it listens."""

        def look() -> tuple[str, int] | None:
            if self.process.poll() is not None:
                pytest.fail(f"the exporter ended with {self.process.returncode}: {self.log}")
            match = LISTENING.search(self.log)
            return (match[1], int(match[2])) if match else None

        if self._address is None:
            self._address = until(look, "the exporter listens")
        return f"{self._address[0]}:{self._address[1]}"

    def get(self, path: str = "/metrics") -> tuple[int, str]:
        """Return status and body of ``path``."""
        return get(f"http://{self.address}{path}")

    def series(self) -> dict[tuple[str, Labels], float]:
        """Return every sample by name and labels."""
        status, text = self.get()
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return the one sample with these labels (others may be there), None where there is none."""
        wanted = set(labels.items())
        found = [value for (metric, have), value in self.series().items() if metric == name and wanted <= have]
        assert len(found) < 2, f"{name}{labels} is ambiguous"
        return found[0] if found else None

    def ready(self) -> Exporter:
        """Wait until it is ready; return itself."""
        until(lambda: self.get("/-/ready")[0] == 200, "the exporter is ready")
        return self

    @property
    def pid(self) -> int:
        """Return the exporter's own PID: a prefix that enters another PID namespace stays as its parent."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if self._entered and children else self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def stop(self, limit: float = 10.0) -> int:
        """End it with SIGTERM; return its status."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the exporter did not end within {limit:.0f} s of SIGTERM: {self.log}")


@contextlib.contextmanager
def exporter(log: Path, *words: str, prefix: Sequence[str] = ()) -> Iterator[Exporter]:
    """Run ``budget-exporter words`` on a free port of loopback."""
    running = Exporter(log, [*words, "--web.listen-address", "127.0.0.1:0"], prefix=prefix)
    try:
        yield running
    finally:
        running.stop()
