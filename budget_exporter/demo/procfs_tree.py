"""
Write a synthetic procfs: processes as Linux shows them, those of vLLM as it leaves them.

A reader never sees half a process: each is built under a name that is no PID and renamed into place.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["INITIAL_NAMESPACE", "Process", "add", "build", "open_card", "remove", "vllm_engine"]

_TITLE_BYTES = 150
"""How much of its command line a vLLM worker overwrites; the exact number is that of its own start."""
_COMM_BYTES = 15
# Kernel drivers/gpu/drm: drm_show_fdinfo, drm_print_memory_stats and amdgpu_show_fdinfo.
_FDINFO = """\
pos:\t0
flags:\t02100002
mnt_id:\t28
ino:\t1088
pasid:\t32770
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{pci}
drm-total-cpu:\t0
drm-shared-cpu:\t0
drm-resident-cpu:\t0
drm-total-gtt:\t{gtt} KiB
drm-shared-gtt:\t0
drm-resident-gtt:\t{gtt} KiB
drm-total-vram:\t{vram} KiB
drm-shared-vram:\t0
drm-resident-vram:\t{vram} KiB
drm-purgeable-vram:\t0
drm-memory-vram:\t{vram} KiB
drm-memory-gtt: \t{gtt} KiB
drm-memory-cpu: \t0 KiB
amd-evicted-vram:\t{evicted} KiB
amd-requested-vram:\t{vram} KiB
amd-requested-gtt:\t{gtt} KiB
"""


INITIAL_NAMESPACE = 4026531836
"""Inode of the PID namespace of every host (kernel ``include/linux/proc_ns.h``)."""


@dataclass(frozen=True, slots=True)
class Process:
    """
    One process of the tree.

    ``title`` makes it one that has overwritten its command line, and ``environ`` with NULs up to ``kept_environ``.
    ``start_ticks`` are clock ticks after boot (100 a second), ``inner_pid`` its PID in a namespace of its own.
    """

    pid: int
    ppid: int = 1
    argv: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    comm: str | None = None
    """Name, cut to 15 bytes; by default the title, else the last part of the first argument."""
    cgroup: str = "0::/\n"
    start_ticks: int = 1000
    state: str = "S"
    title: str | None = None
    kept_environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    root: Path | None = None
    """Where the process's root file system lies; by default the tree has no link to it."""
    kernel: bool = False
    inner_pid: int | None = None
    namespace: int = INITIAL_NAMESPACE
    """Inode of the PID namespace it is in."""


def build(procfs: Path, processes: Iterable[Process], btime: int, boot_id: str) -> None:
    """
    Create a tree at ``procfs`` with ``processes``; ``btime`` is the Unix time of the boot in whole seconds.

    An existing tree keeps its processes. Raise OSError where it cannot be written.
    """
    procfs.mkdir(parents=True, exist_ok=True)
    (procfs / "stat").write_text(f"cpu  0 0 0 0 0 0 0 0 0 0\nctxt 0\nbtime {btime}\nprocesses 1\n", encoding="ascii")
    random = procfs / "sys" / "kernel" / "random"
    random.mkdir(parents=True, exist_ok=True)
    (random / "boot_id").write_text(f"{boot_id}\n", encoding="ascii")
    for process in processes:
        add(procfs, process)


def add(procfs: Path, process: Process) -> None:
    """Start ``process``: from one moment to the next it is there as a whole. Raise OSError where its PID is taken."""
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=procfs))
    # Where a kernel has 0555: an ordinary user runs the demo too.
    new.chmod(0o755)
    comm = _comm(process)
    (new / "stat").write_text(_stat(process, comm), encoding="utf-8")
    (new / "comm").write_text(f"{comm}\n", encoding="utf-8")
    (new / "status").write_text(_status(process, comm), encoding="utf-8")
    (new / "cgroup").write_text(process.cgroup, encoding="utf-8")
    (new / "cmdline").write_bytes(b"" if process.state == "Z" else _cmdline(process))
    (new / "environ").write_bytes(b"" if process.state == "Z" else _environ(process))
    (new / "cwd").symlink_to(process.cwd)
    (new / "ns").mkdir()
    (new / "ns/pid").symlink_to(f"pid:[{process.namespace}]")
    (new / "fd").mkdir()
    (new / "fdinfo").mkdir()
    if process.root is not None:
        (new / "root").symlink_to(process.root)
    new.rename(procfs / str(process.pid))


def remove(procfs: Path, pid: int) -> None:
    """End process ``pid``: renamed to what no reader looks at, then deleted. Raise OSError where it is not there."""
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=procfs))
    (procfs / str(pid)).rename(old)
    shutil.rmtree(old)


def open_card(
    procfs: Path,
    pid: int,
    *,
    pci: str,
    render_minor: int,
    client: int,
    vram: int,
    gtt: int,
    evicted: int = 0,
    descriptor: int = 20,
) -> None:
    """
    Let process ``pid`` have a card open, with ``vram``, ``gtt`` and ``evicted`` bytes; a second call changes them.

    ``client`` is the driver's number of the opening, the same for all descriptors that share it. What fdinfo says is
    what kernels since 6.14 print. Raise OSError where there is no such process.
    """
    process = procfs / str(pid)
    text = _FDINFO.format(pci=pci, client=client, vram=vram // 1024, gtt=gtt // 1024, evicted=evicted // 1024)
    new = process / "fdinfo" / f".{descriptor}"
    new.write_text(text, encoding="ascii")
    new.rename(process / "fdinfo" / str(descriptor))
    link = process / "fd" / str(descriptor)
    if not link.is_symlink():
        link.symlink_to(f"/dev/dri/renderD{render_minor}")


def vllm_engine(
    pid: int,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    ranks: int = 1,
    ppid: int = 1,
    cgroup: str = "0::/\n",
    start_ticks: int = 1000,
    cwd: str = "/",
    root: Path | None = None,
) -> list[Process]:
    """
    Return the processes of one tensor-parallel vLLM server of ``ranks`` ranks, main process ``pid`` first.

    The PIDs after ``pid`` are taken by its resource tracker, EngineCore, and with more than one rank its workers; with
    one rank, EngineCore holds the device itself. Shape of the tree as vLLM 0.32 leaves it.
    """

    def child(nth: int, parent: int, title: str) -> Process:
        kept = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        return Process(
            pid + nth,
            parent,
            environ=environ,
            title=title,
            kept_environ=kept,
            cgroup=cgroup,
            start_ticks=start_ticks + 500 * nth,
            cwd=cwd,
            root=root,
        )

    main = Process(
        pid,
        ppid,
        tuple(argv),
        environ,
        "vllm",
        cgroup,
        start_ticks,
        cwd=cwd,
        root=root,
    )
    tracker = Process(
        pid + 1,
        pid,
        ("python3", "-c", "from multiprocessing.resource_tracker import main;main(31)"),
        environ,
        "python3",
        cgroup,
        start_ticks + 400,
        cwd=cwd,
        root=root,
    )
    core = child(2, pid, "VLLM::EngineCore")
    workers = [child(3 + rank, core.pid, f"VLLM::Worker_TP{rank}") for rank in range(ranks)] if ranks > 1 else []
    return [main, tracker, core, *workers]


def _comm(process: Process) -> str:
    first = process.argv[0].rpartition("/")[2] if process.argv else ""
    name = process.comm if process.comm is not None else process.title or first
    return name.encode()[:_COMM_BYTES].decode(errors="ignore")


def _cmdline(process: Process) -> bytes:
    if process.title is not None:
        return process.title.encode().ljust(_TITLE_BYTES, b"\0")
    return b"".join(arg.encode() + b"\0" for arg in process.argv)


def _environ(process: Process) -> bytes:
    given = b"".join(f"{name}={value}\0".encode() for name, value in process.environ.items())
    if process.title is None:
        return given
    kept = b"".join(f"{name}={value}\0".encode() for name, value in process.kept_environ.items())
    return b"\0" * len(given) + kept


def _status(process: Process, comm: str) -> str:
    inner = "" if process.inner_pid is None else f"\t{process.inner_pid}"
    return (
        f"Name:\t{comm}\nState:\t{process.state}\nTgid:\t{process.pid}\nPid:\t{process.pid}\nPPid:\t{process.ppid}\n"
        f"NSpid:\t{process.pid}{inner}\n"
    )


def _stat(process: Process, comm: str) -> str:
    """Return the 52 fields of proc(5); those that nobody reads are 0."""
    fields = ["0"] * 52
    fields[0], fields[1], fields[2] = str(process.pid), f"({comm})", process.state
    fields[3], fields[8], fields[21] = (
        str(process.ppid),
        str(0x00200000 if process.kernel else 0),
        str(process.start_ticks),
    )
    if not process.kernel:
        # startcode, arg_start and env_start: one program a process, so any address does.
        fields[25], fields[47], fields[49] = "4194304", "140737488347136", "140737488351232"
    return " ".join(fields) + os.linesep
