"""Read single files of a procfs tree: small, bounded reads that take a vanished process for what it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Proc", "Stat"]

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's ``include/linux/sched.h``."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that are used; ``image`` changes when the process executes another program."""

    pid: int
    comm: str
    state: str
    ppid: int
    kernel: bool
    start_ticks: int
    image: tuple[int, int]

    @property
    def gone(self) -> bool:
        """Return whether nothing but an exit status is left of the process."""
        return self.state in "ZXx"

    @property
    def masked(self) -> bool:
        """Return whether the kernel hides addresses from us: then ``image`` tells nothing."""
        return self.image[1] == 0


class Proc:
    """A procfs tree."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)

    def pids(self) -> list[int]:
        """Return the PIDs listed now; raise OSError where the tree cannot be listed."""
        with os.scandir(self.root) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]

    def stat(self, pid: int) -> Stat | None:
        """Return one process's state, None where it has vanished or its line makes no sense."""
        line = self._read(f"{pid}/stat", 4096)
        # The name is in parentheses and may hold both blanks and parentheses.
        start, end = line.find(b"("), line.rfind(b")")
        fields = line[end + 2 :].split()
        try:
            return Stat(
                pid,
                line[start + 1 : end].decode(errors="replace"),
                fields[0].decode(),
                int(fields[1]),
                bool(int(fields[6]) & _KERNEL_THREAD),
                int(fields[19]),
                (int(fields[23]), int(fields[45]) if len(fields) > 45 else 0),  # noqa: PLR2004 - proc(5), arg_start
            )
        except (IndexError, ValueError):
            return None

    def cmdline(self, pid: int) -> tuple[str, ...]:
        """Return the arguments; nothing for a kernel thread, a zombie or a process that has vanished."""
        data = self._read(f"{pid}/cmdline", 1 << 20)
        return tuple(part.decode(errors="replace") for part in data.removesuffix(b"\0").split(b"\0")) if data else ()

    def environ(self, pid: int, allowed: frozenset[str]) -> dict[str, str]:
        """
        Return the environment the process was started with, ``allowed`` names only.

        Raise PermissionError where it may not be read, ValueError where the process has written its title over it.
        """
        data = _bytes(f"{self.root}/{pid}/environ", 2 << 20)
        if data.startswith(b"\0"):
            raise ValueError("overwritten by the process's title")
        found: dict[str, str] = {}
        for entry in data.split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if equals and (text := name.decode(errors="replace")) in allowed:
                # The first of two entries is the one getenv finds.
                found.setdefault(text, value.decode(errors="replace"))
        return found

    def cgroup(self, pid: int) -> str:
        """Return ``/proc/PID/cgroup``, nothing where it cannot be read."""
        return self._read(f"{pid}/cgroup", 1 << 16).decode(errors="replace")

    def cwd(self, pid: int) -> str | None:
        """Return the working directory as the process sees it, None where it may not be read."""
        try:
            return str(Path(self.root, str(pid), "cwd").readlink())
        except OSError:
            return None

    def inner_pid(self, pid: int) -> int | None:
        """Return the PID inside the process's own PID namespace, None where that is the one we see."""
        for line in self._read(f"{pid}/status", 1 << 16).splitlines():
            if line.startswith(b"NSpid:"):
                pids = line.split()[1:]
                return int(pids[-1]) if len(pids) > 1 and pids[-1].isdigit() else None
        return None

    def boot_id(self) -> str:
        """Return the random id of this boot, nothing where there is none."""
        return self._read("sys/kernel/random/boot_id", 64).decode(errors="replace").strip()

    def boot_time(self) -> float | None:
        """Return the Unix time of the boot (``btime``), None where ``stat`` has none."""
        for line in self._read("stat", 1 << 20).splitlines():
            if line.startswith(b"btime "):
                return float(line.split()[1])
        return None

    def _read(self, name: str, limit: int) -> bytes:
        try:
            return _bytes(f"{self.root}/{name}", limit)
        except OSError:
            # Vanished, or hidden from us: either way there is nothing to say of it.
            return b""


def _bytes(path: str, limit: int) -> bytes:
    """Return at most ``limit`` bytes of a file; plain calls, for a thousand processes a second."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = chunk = os.read(descriptor, limit)
        while chunk and len(data) < limit:
            chunk = os.read(descriptor, limit - len(data))
            data += chunk
        return data
    finally:
        os.close(descriptor)
