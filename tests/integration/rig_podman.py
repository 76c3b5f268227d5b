"""
A real podman (runc, vfs, cgroupfs) with its REST service, as root or as a user without any rights.

Its settings are those that also hold in a container or VM without ``CAP_SYS_RESOURCE`` and with hybrid cgroups.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.integration.rig_containers import ContainerRig, missing, python, remove_groups

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


USER = 4321
"""A user id that nobody has: rootless podman needs no entry of its own, only a single id in its user namespace."""


def why_not(*, rootless: bool = False) -> str | None:
    """Return why there can be no rig here, None where it can be."""
    if rootless and python() != "/usr/bin/python3":
        return "a user without rights cannot read this Python: apt-get install python3"
    return missing("podman", "runc", "conmon", "curl", *(["setpriv"] if rootless else []))


@contextlib.contextmanager
def started(where: Path, *, rootless: bool = False) -> Iterator[ContainerRig]:
    """Start a podman whose state lies under ``where`` (an empty directory), and end all of it afterwards."""
    socket, share = where / "run/podman/podman.sock", where / "share"
    if rootless:
        socket = where / f"run/user/{USER}/podman/podman.sock"
    for directory in (socket.parent, share):
        directory.mkdir(parents=True)
    (where / "containers.conf").write_text(f'{_ENGINE}[network]\nnetwork_config_dir = "{where}/net"\n')
    ignore = '[storage.options.vfs]\nignore_chown_errors = "true"\n' if rootless else ""
    (where / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{where}/state"\ngraphroot = "{where}/graph"\n{ignore}'
    )
    environ = {
        **os.environ,
        "CONTAINERS_CONF": f"{where}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{where}/storage.conf",
        "TMPDIR": f"{where}",
    }
    program: tuple[str, ...] = ("podman", f"--tmpdir={where}/libpod")
    if rootless:
        environ |= {"HOME": f"{where}/home", "USER": "", "XDG_RUNTIME_DIR": str(socket.parents[1])}
        environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        program = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "podman")
        (where / "home").mkdir()
        subprocess.run(["chown", "-R", f"{USER}:{USER}", str(where)], check=True)

    def serve() -> subprocess.Popen[bytes]:
        with (where / "service.log").open("ab") as out:
            return subprocess.Popen(
                [*program, "system", "service", "--time=0", f"unix://{socket}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environ,
                cwd=where,
                start_new_session=True,
            )

    rig = ContainerRig("podman", where, socket, share, program, environ, serve)
    rig.load()
    rig.start_service()
    try:
        yield rig
    finally:
        rig.clear()
        if rig.service is not None:
            rig.stop_service()
        if rootless:
            # Ends the process that keeps the user's namespaces open.
            rig.cli("system", "migrate", check=False)
        remove_groups("libpod_parent")
