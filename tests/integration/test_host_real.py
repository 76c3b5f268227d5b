"""The exporter on a host with a real systemd and journal: a crash-looping unit is found, counted and explained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from budget_exporter.demo import amdgpu_tree, boot_log
from budget_exporter.demo.boot_log import Pids
from tests.integration.processes import Exporter, exporter, until
from tests.integration.rig_systemd import SystemdRig

pytestmark = [pytest.mark.real_part("systemd"), pytest.mark.real_part("journald")]
UNIT = "vllm-crashing.service"
ENGINE = "vllm-crashing"

VLLM = """#!/usr/bin/python3
import os, pathlib, time
log = pathlib.Path("/share/crash.log").read_text().replace("pid=1)", f"pid={os.getpid()})")
time.sleep(1)
print(log, flush=True)
time.sleep(1)
raise SystemExit(1)
"""

SERVICE = f"""[Unit]
Description=an engine that asks for all of its device
StartLimitIntervalSec=0
[Service]
ExecStart=/share/vllm serve /models/Qwen3.8-Flash-Next-FP8 --served-model-name Qwen3.8-Flash-Next \\
  --tensor-parallel-size 2 --gpu-memory-utilization 1.0 --max-model-len 200704 --port 7771 \\
  --kv-cache-memory-bytes 3166500000 --enable-expert-offload --expert-precise-memory
Environment=VLLM_CUDAGRAPH_MEM_BASE_MB=0 VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB=12 {"API_KEY=sesame"}
Restart=always
RestartSec=700ms
"""


QUIET = """#!/usr/bin/python3
import time
time.sleep(3600)
"""

QUIET_SERVICE = """[Unit]
Description=an engine that says nothing
[Service]
ExecStart=/share/quiet/vllm serve /models/quiet --port 7772
Restart=on-failure
"""


@pytest.fixture
def running(systemd_rig: SystemdRig, tmp_path: Path) -> Iterator[Exporter]:
    if not (systemd_rig.share / "sys").exists():
        amdgpu_tree.build(systemd_rig.share / "sys")
    lines = [line for _, line in boot_log.crash_loop(Pids(1, 2, (3, 4)))]
    (systemd_rig.share / "crash.log").write_text("\n".join(lines) + "\n")
    script = systemd_rig.share / "vllm"
    script.write_text(VLLM)
    script.chmod(0o755)
    systemd_rig.add_unit(UNIT, SERVICE)
    # On that host in all but its network, so that its endpoint can be asked from here.
    inside = ("nsenter", "-t", str(systemd_rig.leader), "-m", "-p", "-u", "-i", "-C")
    with exporter(tmp_path / "exporter.log", "serve", "--path.sysfs=/share/sys", prefix=inside) as started:
        started.ready()
        yield started
    systemd_rig.remove_unit(UNIT)


def test_a_crashing_unit_is_found_counted_and_explained(running: Exporter, systemd_rig: SystemdRig) -> None:
    def value(name: str, **labels: str) -> float:
        return running.value(name, engine=ENGINE, **labels) or 0

    systemd_rig.start(UNIT)
    until(lambda: value("budget_engine_nrestarts") >= 3, "three restarts by systemd's own counter")
    until(
        lambda: value("budget_engine_failures_total", cause="budget_above_free") >= 3, "three deaths, from the journal"
    )
    until(lambda: value("budget_engine_knife_edge", reason="utilization_limit") == 1, "the reason")
    counted, theirs = value("budget_engine_restarts_total"), int(systemd_rig.show(UNIT, "NRestarts"))
    assert theirs - 1 <= counted <= theirs
    series = running.series()
    assert running.value("budget_engine_info", engine=ENGINE, supervisor="systemd", unit_name=UNIT) == 1
    assert {dict(labels)["device"] for name, labels in series if name == "budget_rank_info"} == {
        "0000:03:00.0", "0000:06:00.0",
    }  # fmt: skip
    sources = ("amdgpu", "journal", "procfs", "systemd")
    assert [running.value("budget_source_success", source=source) for source in sources] == [1, 1, 1, 1]
    assert running.value("budget_exporter_unparsed_lines_total", source="journal") == 0
    for path in ("/", "/metrics", "/api/v1/snapshot"):
        assert "sesame" not in running.get(path)[1]

    systemd_rig.shell("systemctl", "stop", UNIT)
    until(lambda: value("budget_engine_unit_state", state="inactive") == 1, "the stop is seen")
    until(lambda: running.value("budget_engine_up", engine=ENGINE) == 0, "the process is gone")


def test_a_silent_death_counts_though_systemd_has_it_back_at_once_and_a_restart_by_hand_is_none(
    running: Exporter, systemd_rig: SystemdRig
) -> None:
    """RestartSec is 100 ms by default: between two looks at the processes nobody sees the engine gone."""
    unit, engine = "vllm-quiet.service", "vllm-quiet"

    def value(name: str, **labels: str) -> float | None:
        return running.value(name, engine=engine, **labels)

    script = systemd_rig.share / "quiet" / "vllm"
    script.parent.mkdir(exist_ok=True)
    script.write_text(QUIET)
    script.chmod(0o755)
    systemd_rig.add_unit(unit, QUIET_SERVICE)
    try:
        systemd_rig.start(unit)
        until(lambda: value("budget_engine_unit_state", state="active") == 1, "it is watched")
        systemd_rig.shell("systemctl", "kill", "--signal=KILL", unit)
        until(lambda: value("budget_engine_failures_total", cause="unknown") == 1, "the death is counted")
        assert value("budget_engine_restarts_total") == 1
        systemd_rig.shell("systemctl", "restart", unit)
        until(lambda: value("budget_engine_restarts_total") == 2, "the restart by hand is seen")
        until(lambda: (value("budget_engine_start_time_seconds") or 0) < time.time() - 8, "the log had its time")
        assert value("budget_engine_failures_total", cause="unknown") == 1
        assert value("budget_engine_restarts_total") == 2
    finally:
        systemd_rig.remove_unit(unit)
