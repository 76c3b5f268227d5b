"""
A real docker engine of its own, beside any that the machine may run: its own state, socket, containerd and cgroups.

It leaves the machine's network alone: no bridge, no iptables, no forwarding. ``live-restore`` lets containers go on
while the daemon is restarted.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.integration.rig_containers import ContainerRig, missing, remove_groups

__all__ = ["started", "why_not"]

_DAEMON = {
    "storage-driver": "vfs",
    "iptables": False,
    "ip6tables": False,
    "ip-forward": False,
    "ip-masq": False,
    "bridge": "none",
    "live-restore": True,
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1024, "Soft": 1024}},
}


def why_not() -> str | None:
    """Return why there can be no rig here, None where it can be."""
    return missing("dockerd", "docker", "containerd", "runc", "curl")


@contextlib.contextmanager
def started(where: Path) -> Iterator[ContainerRig]:
    """Start a docker whose state lies under ``where`` (an empty directory), and end all of it afterwards."""
    socket, share = where / "var/run/docker.sock", where / "share"
    for directory in (socket.parent, share):
        directory.mkdir(parents=True)
    (where / "daemon.json").write_text(json.dumps(_DAEMON))
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "docker.pid", "--config-file": "daemon.json"}

    def serve() -> subprocess.Popen[bytes]:
        options = [f"{option}={where}/{place}" for option, place in places.items()]
        with (where / "service.log").open("ab") as out:
            return subprocess.Popen(
                ["dockerd", f"--host=unix://{socket}", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    environ = {**os.environ, "DOCKER_CONFIG": f"{where}/client"}
    rig = ContainerRig("docker", where, socket, share, ("docker", f"--host=unix://{socket}"), environ, serve)
    rig.start_service()
    try:
        rig.load()
        yield rig
    finally:
        if rig.service is None:
            rig.start_service()
        rig.clear()
        rig.stop_service()
        _unmount(where)
        remove_groups("docker")


def _unmount(where: Path) -> None:
    """Take away what is still mounted below ``where``: with live-restore the daemon leaves it to its successor."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed([path for path in mounted if path.startswith(f"{where}/")]):
        subprocess.run(["umount", path], capture_output=True, check=False)
