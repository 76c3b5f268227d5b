"""The hardened unit under a real systemd: it starts, answers, and reaches what it is there to read."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import budget_exporter
from tests.integration.processes import until
from tests.integration.rig_systemd import SystemdRig

pytestmark = pytest.mark.real_part("systemd")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
HOME = "opt/budget-exporter"
SOURCES = ("amdgpu", "procfs", "systemd", "journal")
URL = "http://127.0.0.1:19470"
# An engine of another user, whose environment is closed to everybody else.
ENGINE = f"""[Service]
User=nobody
Environment=HIP_VISIBLE_DEVICES=0
ExecStart=/{HOME}/engine/vllm serve example/model --served-model-name deployed --gpu-memory-utilization 0.9
"""
SLEEPER = f"#!/{HOME}/bin/python\nimport time\ntime.sleep(3600)\n"


def _runtime() -> dict[str, importlib.metadata.Distribution]:
    """Return what ``pip install budget-exporter[systemd]`` brings, out of the environment the tests run in."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [("budget-exporter", "systemd")]
    while wanted:
        name, chosen = wanted.pop()
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        for requirement in found[name].requires or ():
            extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", requirement)
            needed = re.match(r"[\w.-]+", requirement)
            if needed is not None and (extra is None or extra[1] == chosen) and _is_here(needed[0]):
                wanted.append((needed[0], ""))
    return found


def _is_here(name: str) -> bool:
    # A requirement of another platform or Python is not; one of ours that is missing shows when the unit starts.
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _install(root: Path) -> None:
    """Do in the rig what the instructions say, with files that are here in place of a download."""
    home = root / HOME
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, capture_output=True)
    site = next(home.glob("lib/python3*/site-packages"))
    for distribution in _runtime().values():
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pth":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    package = Path(budget_exporter.__file__).parent
    shutil.copytree(package, site / package.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    script = home / "bin" / "budget-exporter"
    script.write_text(f"#!/{HOME}/bin/python\nimport sys\nfrom budget_exporter.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    # The interpreter of the tests may lie below /root; the instructions say to take one that everybody may execute.
    for folder in Path(sys.base_prefix).resolve().parents:
        inside = root / folder.relative_to("/")
        inside.chmod(inside.stat().st_mode | 0o011)


@pytest.fixture(scope="module")
def installed(systemd_rig: SystemdRig) -> Iterator[SystemdRig]:
    root = systemd_rig.merged
    _install(root)
    (root / "etc/budget-exporter").mkdir()
    shutil.copy(DEPLOY / "config.yaml", root / "etc/budget-exporter/config.yaml")
    (root / "usr/lib/sysusers.d").mkdir(exist_ok=True)
    shutil.copy(DEPLOY / "budget-exporter.sysusers", root / "usr/lib/sysusers.d/budget-exporter.conf")
    systemd_rig.shell("systemd-sysusers")
    engine = root / HOME / "engine" / "vllm"
    engine.parent.mkdir()
    engine.write_text(SLEEPER)
    engine.chmod(0o755)
    systemd_rig.add_unit("deployed.service", ENGINE)
    systemd_rig.start("deployed.service")
    systemd_rig.add_unit("budget-exporter.service", (DEPLOY / "budget-exporter.service").read_text())
    yield systemd_rig
    systemd_rig.remove_unit("budget-exporter.service")
    systemd_rig.remove_unit("deployed.service")


@pytest.fixture
def running(installed: SystemdRig) -> Iterator[SystemdRig]:
    installed.shell("systemctl", "start", "budget-exporter.service")
    _answers(installed)
    yield installed
    installed.shell("systemctl", "stop", "budget-exporter.service")


def _answers(rig: SystemdRig) -> None:
    def ready() -> bool:
        return rig.shell("curl", "-sf", f"{URL}/-/ready", check=False).returncode == 0

    try:
        until(ready, "the exporter is ready")
    except BaseException:
        print(rig.shell("journalctl", "-u", "budget-exporter.service", "--no-pager", check=False).stdout)  # noqa: T201
        raise


def _value(rig: SystemdRig, name: str, **labels: str) -> float | None:
    text = rig.shell("curl", "-sf", f"{URL}/metrics").stdout
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) < 2
    return found[0] if found else None


def test_systemd_has_nothing_to_say_against_it(installed: SystemdRig) -> None:
    said = installed.shell("systemd-analyze", "verify", "/etc/systemd/system/budget-exporter.service")
    assert said.stderr.strip() == ""


def test_it_answers_and_all_its_sources_succeed(running: SystemdRig) -> None:
    def all_succeed() -> bool:
        return all(_value(running, "budget_source_success", source=source) == 1 for source in SOURCES)

    until(all_succeed, "every source succeeds inside the sandbox")
    assert running.show("budget-exporter.service", "NRestarts") == "0"
    assert running.show("budget-exporter.service", "User") == "budget-exporter"


def test_it_sees_an_engine_of_another_user(running: SystemdRig) -> None:
    until(lambda: _value(running, "budget_engine_up", engine="deployed") == 1, "the engine is found")
    assert _value(running, "budget_engine_info", engine="deployed", unit_name="deployed.service") == 1
    assert _value(running, "budget_source_success", source="procfs") == 1


@contextlib.contextmanager
def _with(rig: SystemdRig, drop_in: str) -> Iterator[None]:
    """Run the unit with one of the drop-ins."""
    folder = rig.merged / "etc/systemd/system/budget-exporter.service.d"
    folder.mkdir()
    try:
        shutil.copy(DEPLOY / "drop-ins" / drop_in, folder)
        rig.shell("systemctl", "daemon-reload")
        rig.shell("systemctl", "restart", "budget-exporter.service")
        _answers(rig)
        yield
    finally:
        shutil.rmtree(folder)
        rig.shell("systemctl", "daemon-reload")


def test_without_capabilities_the_engine_is_shown_and_the_source_says_so(running: SystemdRig) -> None:
    with _with(running, "no-capabilities.conf"):
        until(lambda: _value(running, "budget_engine_up", engine="deployed") == 1, "the engine is found")
        until(lambda: _value(running, "budget_source_success", source="procfs") == 0, "the source says so")
        log = running.shell("journalctl", "-u", "budget-exporter.service", "--no-pager").stdout
        assert "CAP_SYS_PTRACE" in log


def test_a_drop_in_for_devices_names_them_since_they_stay_closed_else(running: SystemdRig) -> None:
    name = "budget-exporter.service"
    assert running.show(name, "DeviceAllow") == "char-rtc r"
    with _with(running, "nvidia.conf"):
        assert running.show(name, "PrivateDevices") == "no"
        assert running.show(name, "DevicePolicy") == "closed"
        assert set(running.show(name, "DeviceAllow").splitlines()) == {"char-rtc r", "char-nvidia* rw"}
        assert running.show(name, "ProtectSystem") == "strict"


@pytest.mark.parametrize("group", ["docker", "podman"])
def test_the_group_of_a_socket_comes_beside_that_of_the_journal(running: SystemdRig, group: str) -> None:
    running.shell("groupadd", "--system", "--force", group)
    with _with(running, f"{group}.conf"):
        pid = running.show("budget-exporter.service", "MainPID")
        groups = running.shell("sh", "-c", f"grep Groups: /proc/{pid}/status; getent group {group} systemd-journal")
        has, *entries = groups.stdout.splitlines()
        assert {entry.split(":")[2] for entry in entries} <= set(has.split()[1:])
        assert len(entries) == 2


def test_it_reads_a_log_that_only_root_may_read(running: SystemdRig) -> None:
    """As the kubelet's are: a folder and a file of root's own."""
    config = running.merged / "etc/budget-exporter/config.yaml"
    good = config.read_text()
    log = running.merged / "var/log/closed/engine.log"
    log.parent.mkdir(mode=0o700)
    log.write_text("INFO 02-03 10:00:00 [api_utils.py:395] version 0.28.0  model m\n")
    log.chmod(0o600)
    try:
        config.write_text(
            "engines: [{name: deployed, match: {unit: deployed.service}, log: {file: /var/log/closed/engine.log}}]\n"
        )
        running.shell("systemctl", "restart", "budget-exporter.service")
        _answers(running)
        until(lambda: _value(running, "budget_source_success", source="file") == 1, "the log is read")
    finally:
        config.write_text(good)
        shutil.rmtree(log.parent)
        running.shell("systemctl", "restart", "budget-exporter.service")


def test_reload_takes_over_a_configuration_and_refuses_a_broken_one(running: SystemdRig) -> None:
    path = running.merged / "etc/budget-exporter/config.yaml"
    good = path.read_text()
    before = _value(running, "budget_exporter_config_last_reload_success_timestamp_seconds") or 0.0
    try:
        path.write_text(good.replace("critical: 256MiB   #", "critical: 300MiB   #"))
        assert path.read_text() != good
        running.shell("systemctl", "reload", "budget-exporter.service")
        until(
            lambda: (_value(running, "budget_exporter_config_last_reload_success_timestamp_seconds") or 0.0) > before,
            "the configuration is taken over",
        )
        floor = {"engine": "deployed", "severity": "critical"}
        until(lambda: _value(running, "budget_law_margin_floor_bytes", **floor) == 300 * 2**20, "the floor is new")
        path.write_text("floors: {critical: 5 bananas}\n")
        running.shell("systemctl", "reload", "budget-exporter.service")
        until(lambda: _value(running, "budget_exporter_config_last_reload_successful") == 0, "the reload is refused")
        assert _value(running, "budget_law_margin_floor_bytes", **floor) == 300 * 2**20
    finally:
        path.write_text(good)


def test_a_broken_configuration_is_not_tried_again(installed: SystemdRig) -> None:
    path = installed.merged / "etc/budget-exporter/config.yaml"
    good = path.read_text()
    try:
        path.write_text("flors: {}\n")
        installed.shell("systemctl", "start", "budget-exporter.service", check=False)
        until(lambda: installed.show("budget-exporter.service", "ActiveState") == "failed", "the unit has failed")
        assert installed.show("budget-exporter.service", "ExecMainStatus") == "2"
        assert installed.show("budget-exporter.service", "NRestarts") == "0"
    finally:
        path.write_text(good)
        installed.shell("systemctl", "reset-failed", "budget-exporter.service", check=False)


def test_state_is_kept_where_only_it_may_read(installed: SystemdRig) -> None:
    installed.shell("systemctl", "start", "budget-exporter.service")
    _answers(installed)
    installed.shell("systemctl", "stop", "budget-exporter.service")
    kept = installed.shell(
        "stat", "-c", "%a %U", "/var/lib/budget-exporter", "/var/lib/budget-exporter/state.json"
    ).stdout
    assert kept.split("\n")[:2] == ["700 budget-exporter", "600 budget-exporter"]
    assert installed.show("budget-exporter.service", "Result") == "success"
