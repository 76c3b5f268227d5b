"""
A real systemd as PID 1, with journal and system bus, in systemd-nspawn on a throw-away overlay of this machine's root.

What the tests of supervision and of the journal run against. Needs root, overlayfs and the package systemd-container.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SystemdRig", "started", "why_not"]

PROJECT = Path(__file__).parents[2]
"""Ours, with its virtual environment: it may lie below /tmp, where nspawn mounts a directory of its own."""
_BOOT_SECONDS = 60.0
_TARGET = """[Unit]
Description=bus and journal, nothing else
Requires=dbus.socket systemd-journald.socket
After=dbus.socket
AllowIsolate=yes
"""


@dataclass(frozen=True, slots=True)
class SystemdRig:
    """
    A running systemd.

    ``leader`` is its PID out here, ``rootfs`` the root it sees, for ``Roots(rootfs=...)``, ``merged`` the same
    directory for writing files into it, and ``share`` a directory that both sides have (inside: ``/share``).
    """

    leader: int
    rootfs: Path
    merged: Path
    share: Path

    @property
    def bus_socket(self) -> Path:
        """Return the socket of its system bus."""
        return self.rootfs / "run/dbus/system_bus_socket"

    @property
    def bus_address(self) -> str:
        """Return the D-Bus address of its system bus."""
        return f"unix:path={self.bus_socket}"

    @property
    def procfs(self) -> Path:
        """Return the /proc it sees."""
        return self.rootfs / "proc"

    def shell(self, *argv: str, check: bool = True, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program inside and return what it said."""
        entered = ("nsenter", "-t", str(self.leader), "-m", "-p", "-u", "-i", "-n", "-C")
        run = subprocess.run([*entered, *argv], capture_output=True, text=True, timeout=timeout, check=False)
        if check and run.returncode:
            raise AssertionError(f"{' '.join(argv)}: exit code {run.returncode}\n{run.stdout}\n{run.stderr}")
        return run

    def add_unit(self, name: str, text: str) -> None:
        """Give systemd a unit file; it is not started."""
        (self.merged / "etc/systemd/system" / name).write_text(text, encoding="utf-8")
        self.shell("systemctl", "daemon-reload")

    def remove_unit(self, name: str) -> None:
        """Stop a unit and take its file away."""
        self.shell("systemctl", "stop", name, check=False)
        self.shell("systemctl", "reset-failed", name, check=False)
        (self.merged / "etc/systemd/system" / name).unlink(missing_ok=True)
        self.shell("systemctl", "daemon-reload")

    def start(self, *units: str) -> None:
        """Start units without waiting for them."""
        self.shell("systemctl", "start", "--no-block", *units)

    def show(self, unit: str, prop: str) -> str:
        """Return one property as systemd's own program prints it."""
        return self.shell("systemctl", "show", "--value", f"--property={prop}", unit).stdout.strip()


def why_not() -> str | None:
    """Return why there can be no rig here, None where it can be."""
    if os.geteuid() != 0:
        return "systemd in nspawn needs root"
    missing = [tool for tool in ("systemd-nspawn", "nsenter", "mount", "umount") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def started(where: Path) -> Iterator[SystemdRig]:
    """Boot a systemd under ``where`` (an empty directory) and end it afterwards; AssertionError where it won't boot."""
    with contextlib.ExitStack() as undo:
        _mount(where, undo)
        merged, share = where / "merged", where / "share"
        for wants in (merged / "etc/systemd/system").glob("*.wants"):
            shutil.rmtree(wants)
        (merged / "etc/systemd/system/rig.target").write_text(_TARGET, encoding="utf-8")
        groups = _cgroups(f"budget-rig-{os.getpid()}", undo)
        log = where / "nspawn.log"
        nspawn = _nspawn(merged, share, log, groups)
        undo.callback(_end, nspawn)
        leader = _leader(nspawn, log)
        yield SystemdRig(leader, Path(f"/proc/{leader}/root"), merged, share)


def _mount(where: Path, undo: contextlib.ExitStack) -> None:
    """A tmpfs for what is written, over the root file system for what is read."""
    _run("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(where))
    undo.callback(_run, "umount", "-l", str(where))
    for name in ("upper", "work", "merged", "share"):
        (where / name).mkdir()
    layers = f"lowerdir=/,upperdir={where}/upper,workdir={where}/work"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, str(where / "merged"))
    undo.callback(_run, "umount", "-l", str(where / "merged"))


def _cgroups(name: str, undo: contextlib.ExitStack) -> list[Path]:
    """A group of its own in systemd's hierarchies (hybrid) or in the only one, so that it may make units there."""
    top = Path("/sys/fs/cgroup")
    hierarchies = [path for path in (top / "systemd", top / "unified") if path.is_dir()] or [top]
    groups = [path / name for path in hierarchies]
    for group in groups:
        group.mkdir(exist_ok=True)
        undo.callback(_remove_group, group)
    return groups


def _remove_group(group: Path) -> None:
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


def _nspawn(merged: Path, share: Path, log: Path, groups: list[Path]) -> subprocess.Popen[bytes]:
    join = "".join(f"echo $$ > {group}/cgroup.procs; " for group in groups)
    command = (
        f"{join}exec systemd-nspawn -D {merged} --register=no --keep-unit --private-network "
        f"--machine=rig{os.getpid()} --link-journal=no --bind={share}:/share --bind-ro={PROJECT} "
        "--boot systemd.unit=rig.target"
    )
    with log.open("wb") as out:
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _leader(nspawn: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the bus inside answers and return systemd's PID."""
    deadline = time.monotonic() + _BOOT_SECONDS
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    while time.monotonic() < deadline and nspawn.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            leader = int(children.read_text(encoding="ascii").split()[0])
            if Path(f"/proc/{leader}/root/run/dbus/system_bus_socket").is_socket():
                return leader
        time.sleep(0.05)
    raise AssertionError(f"systemd did not boot in nspawn:\n{log.read_text(errors='replace')[-4000:]}")


def _end(nspawn: subprocess.Popen[bytes]) -> None:
    """Ask systemd to power off, and end nspawn where it won't."""
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    with contextlib.suppress(OSError, IndexError, ValueError):
        os.kill(int(children.read_text(encoding="ascii").split()[0]), signal.SIGRTMIN + 4)
    try:
        nspawn.wait(20)
    except subprocess.TimeoutExpired:
        nspawn.kill()
        nspawn.wait(20)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
