"""
Print what reading an engine's log costs, beside ``grep -c`` on the same file.

The log is that of an engine that has booted and serves: boots as the demo prints them, access lines, statistics every
ten seconds. All in one run on one machine, from the page cache.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from budget_exporter.demo import boot_log
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.tail import Tail

SIZE = 64 << 20
BOOTS = 16
ROUNDS = 3
_STATISTICS = (
    "(APIServer pid=11) INFO 02-03 10:00:22 [loggers.py:236] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
    "Avg generation throughput: {output:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 34.2%"
)
_ACCESS = '(APIServer pid=11) INFO:     192.0.2.{host}:{port} - "{method} HTTP/1.1" 200 OK'
_METHODS = ("POST /v1/chat/completions", "POST /v1/completions", "GET /health", "GET /metrics")


def served(size: int, seed: int) -> Iterator[str]:
    """Yield about ``size`` bytes of what a serving engine prints: a line of statistics for twenty requests."""
    dice = random.Random(seed)  # noqa: S311 - the same log every time is wanted
    while size > 0:
        if dice.random() < 1 / 20:
            running, usage = dice.randrange(1, 30), dice.uniform(1, 90)
            line = _STATISTICS.format(prompt=usage * 20, output=usage * 9, running=running, usage=usage)
        else:
            method = _METHODS[min(3, int(dice.expovariate(1)))]
            line = _ACCESS.format(host=dice.randrange(1, 255), port=dice.randrange(1024, 65536), method=method)
        size -= len(line) + 1
        yield line


def write(path: Path) -> None:
    """Write the log: boots, each followed by its share of what is printed while the engine serves."""
    pids = boot_log.Pids(11, 12, (30, 31))
    with path.open("w", encoding="utf-8") as file:
        for seed in range(BOOTS):
            for line in (line for _, line in boot_log.knife_edge(pids)):
                file.write(line + "\n")
            for line in served(SIZE // BOOTS, seed):
                file.write(line + "\n")


def seconds(run: Callable[[], object]) -> float:
    """Return the shortest time ``run`` took in some rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def tailed(path: Path) -> int:
    """Read the file to its end and look at nothing."""
    tail, records = Tail(path, None, 1 << 16), 0
    try:
        while batch := tail.read():
            records += len(batch)
    finally:
        tail.close()
    return records


def understood(path: Path) -> BootReader:
    """Read the file to its end and understand it."""
    tail, reader = Tail(path, None, 1 << 16), BootReader()
    try:
        while batch := tail.read():
            reader.feed(batch)
    finally:
        tail.close()
    if reader.report().kv_tokens is None:
        raise RuntimeError("the log was not understood")
    return reader


def main() -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.log"
        write(path)
        size, lines = path.stat().st_size, path.read_bytes().count(b"\n")
        rows = [
            ("lines of the file, nothing looked for", seconds(lambda: tailed(path))),
            ("read and understood, boots and deaths told", seconds(lambda: understood(path))),
        ]
        grep = shutil.which("grep")
        if grep is not None:
            command = [grep, "-c", "KV cache", str(path)]
            rows.append(
                ("grep -c 'KV cache'", seconds(lambda: subprocess.run(command, check=True, capture_output=True)))
            )
        head = f"log of {size / 1e6:.0f} MB, {lines} lines, {BOOTS} boots"
        print(f"{head:<56} {'MB/s':>8} {'lines/s':>12}")  # noqa: T201 - a report
        for what, took in rows:
            print(f"{what:<56} {size / took / 1e6:>8.0f} {lines / took:>12.0f}")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
