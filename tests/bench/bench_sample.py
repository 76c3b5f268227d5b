"""
Print what one sample of two cards costs, beside a bare loop over the same files and one rocm-smi call.

All in one run on one machine, on a synthetic tree: its files are those of the temporary folder's file system, and a
real sysfs answers a read more slowly. The proportions are the point, not the microseconds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from budget_exporter.demo import amdgpu_tree as tree
from budget_exporter.devices import amdgpu
from budget_exporter.roots import Roots

ROUNDS = 5
READS = 4000
REFRESHES = 200
SMI_CALLS = 3
FAKE_SYS = Path(__file__).parents[1] / "integration/fake_sys.sh"


def microseconds(run: Callable[[], object], repeat: int) -> float:
    """Return the median over some rounds of the mean time of ``run`` in microseconds."""
    means = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        means.append((time.perf_counter() - start) / repeat * 1e6)
    return statistics.median(means)


def bare_loop(sysfs: Path, names: tuple[str, ...]) -> Callable[[], object]:
    """Return the least that can be done: pread and int of ``names`` for each card, nothing checked, nothing made."""
    paths = [tree.card_directory(sysfs, card.pci) / name for card in tree.R9700_PAIR for name in names]
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    return lambda: [int(os.pread(descriptor, 64, 0)) for descriptor in descriptors]


def reader(sysfs: Path, now: Callable[[], float]) -> Callable[[], object]:
    source = amdgpu.source(Roots(sysfs=sysfs), monotonic=now)
    nobody: frozenset[int] = frozenset()
    source.read(nobody)
    return lambda: source.read(nobody)


def rocm_smi(sysfs: Path) -> Callable[[], object] | str:
    """Return a rocm-smi call on the tree, or why there is none."""
    program = shutil.which("rocm-smi")
    if program is None:
        return "rocm-smi is not installed"
    command = [str(FAKE_SYS), str(sysfs), program, "--showmeminfo", "vram", "--json"]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if "VRAM Total Used Memory" not in probe.stdout:
        return f"rocm-smi did not answer: {(probe.stderr.strip().splitlines() or ['no output'])[-1]}"
    return lambda: subprocess.run(command, capture_output=True, check=True)


def main() -> None:
    """Measure and print the table."""
    rows: list[tuple[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        sysfs = Path(folder) / "sys"
        tree.build(sysfs)
        ticks = iter(range(sys.maxsize))
        bare = microseconds(bare_loop(sysfs, ("mem_info_vram_used", "mem_info_gtt_used")), READS)
        sample = microseconds(reader(sysfs, lambda: 0.0), READS)
        refresh = microseconds(reader(sysfs, lambda: float(next(ticks))), REFRESHES)
        rows += [
            ("bare os.pread and int, VRAM and GTT used", bare),
            ("AmdgpuSource.read, descriptors trusted (9 of 10)", sample),
            ("AmdgpuSource.read, all paths looked at again (1 of 10)", refresh),
            ("a second at 10 Hz: 9 of the one, 1 of the other", 9 * sample + refresh),
        ]
        smi = rocm_smi(sysfs)
        cost = smi if isinstance(smi, str) else microseconds(smi, SMI_CALLS)
        rows.append(("rocm-smi --showmeminfo vram --json, one call", cost))
    print(f"{'two cards, median of ' + str(ROUNDS) + ' rounds':<56} {'us':>10} {'x bare':>8}")  # noqa: T201 - a report
    for what, value in rows:
        figures = f"{value:>10.1f} {value / bare:>8.1f}" if isinstance(value, float) else f" {value}"
        print(f"{what:<56} {figures}")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
