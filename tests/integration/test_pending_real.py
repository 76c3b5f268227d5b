"""What a real systemd would start next time: a unit that was edited is pending until the engine is restarted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import budget_exporter
from tests.integration.processes import until
from tests.integration.rig_systemd import SystemdRig

pytestmark = pytest.mark.real_part("systemd")

NAME = "vllm-pending.service"
UNIT = """[Service]
Environment=LEN=8K VLLM_CPU_KVCACHE_SPACE=4
ExecStart=/share/pending/vllm serve /models/flash -tp 2 --max-model-len ${LEN}
"""
LOOK = """
import json, sys
from budget_exporter.engines import pending, procfs, start
from budget_exporter.roots import Roots

roots = Roots()
engines = [s for s in procfs.source(roots).find()[0] if s.unit == sys.argv[1]]
watched = [start.Watched("e", s, None, start.Start("unit", s.unit)) for s in engines]
found = pending.source(roots).look(watched)[0]
print(json.dumps([[s.main.pid, found[s.main].flags, found[s.main].why] for s in engines]))
"""


@pytest.fixture
def server(systemd_rig: SystemdRig) -> Iterator[SystemdRig]:
    """Give a systemd that runs an engine-shaped service."""
    script = systemd_rig.share / "pending/vllm"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n", encoding="utf-8")
    script.chmod(0o755)
    systemd_rig.add_unit(NAME, UNIT)
    systemd_rig.start(NAME)
    yield systemd_rig
    systemd_rig.remove_unit(NAME)


def pending(rig: SystemdRig) -> tuple[int, list[str] | None, str]:
    """Return the PID of the engine, once it is one, and what is pending."""
    home = Path(budget_exporter.__file__).parent.parent
    found: list[tuple[int, list[str] | None, str]] = []

    def look() -> bool:
        said = rig.shell("env", f"PYTHONPATH={home}", sys.executable, "-c", LOOK, NAME).stdout
        found[:] = [(pid, flags, why) for pid, flags, why in json.loads(said)]
        return len(found) == 1

    until(look, f"{NAME} runs one engine", 60)
    return found[0]


def test_an_edited_unit_is_pending_until_the_restart(server: SystemdRig) -> None:
    before, flags, why = pending(server)
    assert (flags, why) == ([], "")
    file = server.merged / "etc/systemd/system" / NAME
    file.write_text(UNIT.replace("LEN=8K", "LEN=16K").replace("SPACE=4", "SPACE=8"), encoding="utf-8")
    changed = ["VLLM_CPU_KVCACHE_SPACE", "max-model-len"]
    assert server.show(NAME, "NeedDaemonReload") == "yes"
    assert pending(server) == (before, changed, "")
    server.shell("systemctl", "daemon-reload")
    assert server.show(NAME, "NeedDaemonReload") == "no"
    assert pending(server) == (before, changed, "")
    server.shell("systemctl", "restart", NAME)
    after, flags, why = pending(server)
    assert after != before
    assert (flags, why) == ([], "")


def test_a_restart_that_has_not_taken_a_new_file_up_shows(server: SystemdRig) -> None:
    """Without a daemon-reload systemd starts what it read before."""
    before, _, _ = pending(server)
    drop_in = server.merged / "etc/systemd/system" / f"{NAME}.d"
    drop_in.mkdir()
    (drop_in / "10-length.conf").write_text("[Service]\nEnvironment=LEN=4K\n", encoding="utf-8")
    try:
        server.shell("systemctl", "restart", NAME)
        after, flags, _ = pending(server)
        assert after != before
        # systemd's own NeedDaemonReload knows of the files it has read only: of a new one it says nothing.
        assert flags == ["max-model-len"]
    finally:
        (drop_in / "10-length.conf").unlink()
        drop_in.rmdir()
