"""The exporter on a host whose NVIDIA library is a stand-in: the real nvidia-ml-py in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.devices.nvml_stand_in import H100, RESERVED, SIZE, answer, build
from tests.integration.processes import exporter, until

pytestmark = pytest.mark.real_part("nvidia-ml-py")
FIRST, SECOND = "0000:03:00.0", "0000:0a:00.0"
GIB = 1 << 30
ALLOWED = 56 * 1024
"""KiB that the exporter may have resident."""


def test_cards_are_shown_lost_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library, answers = build(tmp_path), tmp_path / "answers"
    answer(answers, H100)
    for folder in ("sys/module/nvidia", "proc", "root"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/stat").write_text("btime 1700000000\n")
    roots = [
        f"--path.{name}={tmp_path / folder}"
        for name, folder in (("sysfs", "sys"), ("procfs", "proc"), ("rootfs", "root"))
    ]
    env = ("env", f"LD_LIBRARY_PATH={library.parent}", f"FAKE_NVML={answers}")
    words = ("serve", *roots, "--no-source.systemd", "--no-source.journal")
    with exporter(tmp_path / "log", *words, prefix=env) as running:
        running.ready()
        until(lambda: running.value("budget_device_memory_used_bytes", device=FIRST), "the first card is shown")
        assert running.value("budget_device_memory_size_bytes", device=FIRST) == SIZE - RESERVED
        assert running.value("budget_device_memory_reserved_bytes", device=FIRST) == RESERVED
        assert running.value("budget_device_memory_used_bytes", device=FIRST) == 70 * GIB
        assert running.value("budget_device_info", device=SECOND, platform="nvidia", sampler="nvml_v2") == 1
        assert running.value("budget_source_success", source="nvidia") == 1
        answer(answers, H100 | {"0.memory": "15", "0.handle": "15"})
        until(lambda: running.value("budget_source_success", source="nvidia") == 0, "the loss is told")
        until(
            lambda: running.value("budget_device_memory_used_bytes", device=FIRST) is None, "the lost card's series end"
        )
        assert running.value("budget_device_memory_used_bytes", device=SECOND) is not None
        assert f"{FIRST}: the card is lost" in running.log
        answer(answers, H100)
        until(lambda: running.value("budget_device_memory_used_bytes", device=FIRST) == 70 * GIB, "it is back")
        resident = next(
            int(line.split()[1])
            for line in Path(f"/proc/{running.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS:")
        )
        assert resident <= ALLOWED
    with capsys.disabled():
        sys.stdout.write(f"\nresident with NVIDIA's library loaded: {resident / 1024:.1f} MiB\n")
