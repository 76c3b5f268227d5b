"""
A real podman (rootful, runc, vfs, cgroupfs) with its REST service.

Its settings are those that also hold in a container or VM without ``CAP_SYS_RESOURCE`` and with hybrid cgroups.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.integration.rig_containers import ContainerRig, missing, remove_groups

__all__ = ["started", "why_not"]

_ENGINE = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
netns = "host"
"""


def why_not() -> str | None:
    """Return why there can be no rig here, None where it can be."""
    return missing("podman", "runc", "conmon", "curl")


@contextlib.contextmanager
def started(where: Path) -> Iterator[ContainerRig]:
    """Start a podman whose state lies under ``where`` (an empty directory), and end all of it afterwards."""
    socket, share = where / "run/podman/podman.sock", where / "share"
    for directory in (socket.parent, share):
        directory.mkdir(parents=True)
    (where / "containers.conf").write_text(f'{_ENGINE}[network]\nnetwork_config_dir = "{where}/net"\n')
    (where / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{where}/state"\ngraphroot = "{where}/graph"\n'
    )
    environ = {
        **os.environ,
        "CONTAINERS_CONF": f"{where}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{where}/storage.conf",
        "TMPDIR": f"{where}",
    }
    tmp = f"--tmpdir={where}/libpod"

    def serve() -> subprocess.Popen[bytes]:
        with (where / "service.log").open("ab") as out:
            return subprocess.Popen(
                ["podman", tmp, "system", "service", "--time=0", f"unix://{socket}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environ,
                start_new_session=True,
            )

    rig = ContainerRig("podman", where, socket, share, ("podman", tmp), environ, serve)
    rig.load()
    rig.start_service()
    try:
        yield rig
    finally:
        rig.clear()
        if rig.service is not None:
            rig.stop_service()
        remove_groups("libpod_parent")
