from __future__ import annotations

import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from budget_exporter import cli
from tests.real_parts import program

SYSTEMD = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "budget-exporter.service"
DROP_INS = sorted((SYSTEMD / "drop-ins").iterdir())
ADDED = frozenset({"PrivateDevices", "DevicePolicy", "DeviceAllow", "SupplementaryGroups", "MemoryHigh", "MemoryMax"})
ADDED |= {"AmbientCapabilities", "CapabilityBoundingSet"}
"""What a drop-in may change; everything else stays as hard as it is."""


def _settings(path: Path = UNIT) -> dict[str, list[str]]:
    """Return every setting of a unit or a drop-in; a key may be given more than once."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


SETTINGS = _settings()


def test_the_unit_starts_serve_with_flags_that_exist() -> None:
    _, *words = shlex.split(SETTINGS["ExecStart"][0])
    assert words.pop() == "$BUDGET_EXPORTER_OPTIONS"
    options = cli._parser("serve").parse_args(words)
    assert options.config == Path("/etc/budget-exporter/config.yaml")


def test_every_capability_is_both_granted_and_all_there_is() -> None:
    assert SETTINGS["AmbientCapabilities"] == ["CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"]
    assert SETTINGS["CapabilityBoundingSet"] == SETTINGS["AmbientCapabilities"]


def test_the_processes_of_others_stay_visible() -> None:
    assert SETTINGS["ProtectProc"] == ["default"]
    assert SETTINGS["ProcSubset"] == ["all"]
    # A user namespace of its own would void the capabilities, a mount of its own /proc would hide the engines.
    assert "PrivateUsers" not in SETTINGS
    assert "PrivatePIDs" not in SETTINGS


@pytest.mark.real_part("systemd-analyze")
def test_systemd_finds_little_exposure() -> None:
    judged = subprocess.run(
        [program("systemd-analyze"), "security", "--offline=true", "--threshold=25", "--no-pager", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-300:] + judged.stderr
    assert "Overall exposure level" in judged.stdout


@pytest.mark.real_part("systemd-sysusers")
def test_systemd_makes_the_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    subprocess.run(
        [program("systemd-sysusers"), f"--root={tmp_path}", SYSTEMD / "budget-exporter.sysusers"],
        check=True,
        capture_output=True,
    )
    made = (tmp_path / "etc" / "passwd").read_text(encoding="utf-8")
    assert re.search(r"^budget-exporter:x:\d+:\d+:.*:/var/lib/budget-exporter:.*nologin$", made, re.MULTILINE)
    assert SETTINGS["User"] == ["budget-exporter"]


def test_the_instructions_install_every_file_of_this_folder() -> None:
    told = (SYSTEMD / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in SYSTEMD.iterdir() if f"deploy/systemd/{path.name}" in told} == {
        path.name for path in SYSTEMD.iterdir() if path.name != "README.md"
    }


@pytest.mark.parametrize("path", DROP_INS, ids=lambda path: path.stem)
def test_a_drop_in_opens_what_it_is_for_and_nothing_else(path: Path) -> None:
    settings = _settings(path)
    assert settings.keys() <= ADDED
    assert f"`{path.name}`" in (SYSTEMD / "README.md").read_text(encoding="utf-8")
    # ProtectClock of the unit implies a list of devices: without their names the nodes stay closed.
    assert SETTINGS["ProtectClock"] == ["yes"]
    opened = settings.get("PrivateDevices") == ["no"]
    assert opened == bool(settings.get("DeviceAllow")) == (settings.get("DevicePolicy") == ["closed"])
    assert all(re.fullmatch(r"char-[a-z]+\*? rw", allowed) for allowed in settings.get("DeviceAllow", ()))


@pytest.mark.real_part("systemd-analyze")
@pytest.mark.parametrize("path", DROP_INS, ids=lambda path: path.stem)
def test_with_a_drop_in_the_exposure_stays_little(path: Path, tmp_path: Path) -> None:
    """Devices cost most: what is as good as root shows in no score."""
    whole = tmp_path / UNIT.name
    whole.write_text(UNIT.read_text(encoding="utf-8") + path.read_text(encoding="utf-8"), encoding="utf-8")
    judged = subprocess.run(
        [program("systemd-analyze"), "security", "--offline=true", "--threshold=30", "--no-pager", whole],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-300:] + judged.stderr
