from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter import cli, config
from budget_exporter.roots import Roots
from budget_exporter.sources import SOURCES
from tests.real_parts import program

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
HOST = ("/sys", "/proc", "/var/log/journal", "/etc/machine-id", "/run/dbus/system_bus_socket")
"""What is taken from the host; everything else that is mounted is a file of the repository or a named volume."""

per_service = pytest.mark.parametrize("name", SERVICES)


def _mounts(name: str) -> list[tuple[str, str, str]]:
    """Return (source, target, mode) of every mount of a service."""
    parts = [entry.split(":") for entry in SERVICES[name]["volumes"]]
    return [(part[0], part[1], part[2] if len(part) > 2 else "rw") for part in parts]


def _files(name: str) -> dict[str, Path]:
    """Return container path to repository path of the files a service mounts."""
    return {target: (COMPOSE / source).resolve() for source, target, _ in _mounts(name) if source.startswith(".")}


def _flags(name: str) -> dict[str, str]:
    return dict(word.lstrip("-").split("=", 1) for word in SERVICES[name]["command"])


def _as_in_container(name: str, folder: Path) -> Path:
    """Lay out a service's files below ``folder`` as its container sees them."""
    for target, source in _files(name).items():
        placed = folder / target.lstrip("/")
        placed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, placed)
    return folder


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_four_services_are_there() -> None:
    assert list(SERVICES) == ["exporter", "prometheus", "alertmanager", "grafana"]


@per_service
def test_what_is_mounted_exists(name: str) -> None:
    for source, target, mode in _mounts(name):
        if source.startswith("."):
            assert (COMPOSE / source).resolve().is_file(), source
            assert mode == "ro", target
        elif source.startswith("/"):
            assert source in HOST
            assert mode == "ro", target
        else:
            assert source in FILE["volumes"]
    targets = [target for _, target, _ in _mounts(name)]
    assert len(targets) == len(set(targets))


@per_service
def test_a_service_can_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "devices" not in service
    assert ("pid" in service) == (name == "exporter")


@per_service
def test_ports_are_open_on_loopback_only(name: str) -> None:
    assert SERVICES[name]["ports"]
    for port in SERVICES[name]["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)


@per_service
def test_images_are_pinned(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)


def test_no_secret_is_written_down() -> None:
    for path in [*COMPOSE.iterdir(), CONTAINERFILE]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?i)(password|passwd|secret|token|api_?key)\s*[=:]\s*\S", text), path


@per_service
def test_dependencies_are_services(name: str) -> None:
    assert set(SERVICES[name].get("depends_on", [])) <= set(SERVICES)


def test_the_exporter_reads_the_host_through_its_flags() -> None:
    flags = _flags("exporter")
    mounted = {target: source for source, target, _ in _mounts("exporter")}
    assert mounted[flags["path.sysfs"]] == "/sys"
    assert mounted[flags["path.procfs"]] == "/proc"
    assert mounted[f"{flags['path.rootfs']}/var/log/journal"] == "/var/log/journal"
    assert SERVICES["exporter"]["pid"] == "host"
    assert flags["config.file"] in mounted
    state = next(target for source, target, _ in _mounts("exporter") if source == "exporter-state")
    assert Path(flags["state.file"]).parent == Path(state)
    assert f" {state}" in CONTAINERFILE.read_text(encoding="utf-8")


def test_the_exporter_takes_these_flags(tmp_path: Path) -> None:
    words = SERVICES["exporter"]["command"]
    # Where the container has a folder of the host, an empty one does here.
    local = [re.sub(r"^(--path\.\w+)=.*", rf"\1={tmp_path}", word) for word in words]
    options = cli._parser("serve").parse_args(local)
    assert str(options.state) == _flags("exporter")["state.file"]
    assert options.listen == ["0.0.0.0:19470"]


@pytest.mark.parametrize("path", [COMPOSE / "config.yaml", ROOT / "deploy" / "systemd" / "config.yaml"], ids=str)
def test_example_configurations_load(path: Path) -> None:
    loaded = config.load(path, frozenset(SOURCES))
    assert loaded.floors.critical == 256 * 2**20


def test_the_override_adds_what_reading_an_environment_takes() -> None:
    override = yaml.safe_load((COMPOSE / "compose.environ.yaml").read_text(encoding="utf-8"))
    assert set(override["services"]) == {"exporter"}
    assert override["services"]["exporter"]["cap_add"] == ["SYS_PTRACE", "DAC_READ_SEARCH"]
    assert override["services"]["exporter"]["user"] == "0:0"


@pytest.mark.parametrize("path", sorted(COMPOSE.glob("compose.*.yaml")), ids=lambda path: path.stem)
def test_an_override_is_for_the_exporter_alone_and_told_of(path: Path) -> None:
    override = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(override) == {"services"}
    assert set(override["services"]) == {"exporter"}
    assert f"-f {path.name}" in (COMPOSE / "README.md").read_text(encoding="utf-8")
    for key in ("privileged", "network_mode", "devices", "read_only", "cap_drop"):
        assert key not in override["services"]["exporter"]


def test_the_socket_of_containers_lies_where_the_exporter_looks(tmp_path: Path) -> None:
    exporter = yaml.safe_load((COMPOSE / "compose.containers.yaml").read_text(encoding="utf-8"))["services"]["exporter"]
    [mount] = exporter["volumes"]
    source, target, mode = mount.split(":")
    assert (source, mode) == ("/run/docker.sock", "ro")
    inside = Path(target).relative_to(_flags("exporter")["path.rootfs"])
    (tmp_path / inside).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / inside))
        assert Roots(rootfs=tmp_path).sockets() == [tmp_path / inside]


def test_the_image_can_be_given_every_reader_s_library() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    assert "ARG EXTRAS=systemd\n" in text
    assert '".[${EXTRAS}]"' in text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    nvidia = yaml.safe_load((COMPOSE / "compose.nvidia.yaml").read_text(encoding="utf-8"))["services"]["exporter"]
    assert set(nvidia["build"]["args"]["EXTRAS"].split(",")) == {"systemd", "nvidia"} <= set(extras)
    assert set(re.findall(r"come in, too: (.+)\.", text)[0].split(", ")) <= set(extras)


@pytest.mark.real_part("promtool")
def test_prometheus_takes_its_configuration_with_the_rules(tmp_path: Path) -> None:
    root = _as_in_container("prometheus", tmp_path)
    path = root / _flags("prometheus")["config.file"].lstrip("/")
    said = _run(program("promtool"), "check", "config", path)
    assert re.search(r"SUCCESS: \d+ rules found", said)
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    [job] = loaded["scrape_configs"]
    assert job["job_name"] == "budget_exporter"
    assert job["static_configs"][0]["targets"] == ["exporter:19470"]
    assert SERVICES["exporter"]["ports"] == ["127.0.0.1:19470:19470"]
    [managers] = loaded["alerting"]["alertmanagers"]
    assert managers["static_configs"][0]["targets"] == [f"alertmanager{_flags('alertmanager')['web.listen-address']}"]


@pytest.mark.real_part("amtool")
def test_alertmanager_takes_its_configuration(tmp_path: Path) -> None:
    root = _as_in_container("alertmanager", tmp_path)
    said = _run(program("amtool"), "check-config", root / _flags("alertmanager")["config.file"].lstrip("/"))
    assert "SUCCESS" in said


def test_grafana_finds_datasource_and_dashboard(tmp_path: Path) -> None:
    root = _as_in_container("grafana", tmp_path)
    provisioning = root / "etc/grafana/provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards/dashboards.yml").read_text(encoding="utf-8"))["providers"]
    found = list((root / provider["options"]["path"].lstrip("/")).glob("*.json"))
    assert [json.loads(path.read_text(encoding="utf-8"))["uid"] for path in found] == ["budget-engine"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (root / home.lstrip("/")) in found
    [source] = yaml.safe_load((provisioning / "datasources/datasource.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == f"http://prometheus{_flags('prometheus')['web.listen-address']}"
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_nobody_logs_in_to_grafana() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"


def test_the_image_is_built_from_files_that_exist_as_an_unprivileged_user() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    build = SERVICES["exporter"]["build"]
    assert (COMPOSE / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == CONTAINERFILE
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    ignore = (ROOT / "deploy" / "Containerfile.dockerignore").read_text(encoding="utf-8").split()
    for word in copied:
        assert (ROOT / word).exists()
        assert f"!{word}" in ignore
    user = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    assert user
    assert "0" not in user[-1]
    assert all(":" in image for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE))
