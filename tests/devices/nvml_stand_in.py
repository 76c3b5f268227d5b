"""Build a stand-in for libnvidia-ml.so.1, and write what it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from budget_exporter.units import GIB, MIB
from tests.real_parts import unavailable

__all__ = ["H100", "RESERVED", "SIZE", "answer", "build"]

SIZE, RESERVED = 81559 * MIB, 551 * MIB
H100 = {
    "driver": "580.65.06",
    "count": "2",
    "0.bus": "00000000:03:00.0",
    "0.name": "NVIDIA H100 80GB HBM3",
    "0.uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "0.total": str(SIZE),
    "0.reserved": str(RESERVED),
    "0.used": str(70 * GIB),
    "0.compute": f"{os.getpid()}:{68 * GIB} 999999:{GIB}",
    "1.bus": "00000000:0A:00.0",
    "1.name": "NVIDIA H100 80GB HBM3",
    "1.uuid": "GPU-66666666-2222-3333-4444-555555555555",
    "1.total": str(SIZE),
    "1.reserved": str(RESERVED),
    "1.used": str(4 * MIB),
}
"""Two idle cards' own figures, and 68 GiB of the first held by the process of the tests."""


def build(folder: Path) -> Path:
    """Compile the stand-in under the name that the library is asked for; skip where there is no compiler."""
    if not shutil.which("gcc"):
        unavailable("no gcc to build a stand-in for libnvidia-ml.so.1: apt-get install gcc libc6-dev")
    built = folder / "libnvidia-ml.so.1"
    words = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{built.name}")
    subprocess.run(["gcc", *words, "-o", built, Path(__file__).with_name("fake_nvml.c")], check=True)
    return built


def answer(file: Path, answers: Mapping[str, str]) -> None:
    """Have the stand-in that looks into ``file`` answer so from now on."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{key} {text}\n" for key, text in answers.items()))
    new.replace(file)
