"""
What the rigs of podman and docker share: an image with an engine-shaped program, and the runtime's own client.

The image holds nothing but links and the program; the host's ``/usr`` and Python are mounted into it, read-only. All of
it lies in a directory that is thrown away.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["IMAGE", "ContainerRig", "image", "python", "wait_for"]

IMAGE = "localhost/engine:1"
_ENGINE = """
import os, signal, sys, time

assert sys.argv[1] == "serve"
# As vLLM's server does: asked to end it ends well.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("engine of process", os.getpid(), flush=True)
end = time.monotonic() + float(os.environ.get("LIFE", "inf"))
eaten = bytearray(int(os.environ.get("EAT_MIB", "0")) << 20)
say = open(os.environ["SAY"]) if "SAY" in os.environ else None
while time.monotonic() < end:
    line = say.readline() if say else ""
    if line:
        print(line, end="", flush=True)
    else:
        time.sleep(0.02)
sys.exit(int(os.environ.get("STATUS", "1")))
"""
_PATIENCE = 60.0


@dataclass(slots=True)
class ContainerRig:
    """
    A running podman or docker with its REST socket below ``rootfs``, where a host has it: ``Roots(rootfs=rig.rootfs)``.

    ``share`` is mounted as ``/share`` into every container. An engine says what is appended to the file that its
    ``SAY`` names, ends after ``LIFE`` seconds with ``STATUS`` (1), and eats ``EAT_MIB`` of memory.
    """

    runtime: str
    rootfs: Path
    socket: Path
    share: Path
    client: tuple[str, ...]
    environ: Mapping[str, str]
    serve: Callable[[], subprocess.Popen[bytes]]
    """Start the service that answers at ``socket``."""
    service: subprocess.Popen[bytes] | None = None
    mounts: tuple[str, ...] = field(default_factory=lambda: tuple(_mounts()))

    def cli(self, *argv: str, check: bool = True) -> str:
        """Run the runtime's own program and return what it said."""
        run = subprocess.run(
            [*self.client, *argv],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
            env=self.environ,
            cwd=self.rootfs,
        )
        if check and run.returncode:
            raise AssertionError(f"{self.runtime} {' '.join(argv)}: {run.returncode}\n{run.stdout}\n{run.stderr}")
        return run.stdout.strip()

    def start(self, name: str, *flags: str, options: tuple[str, ...] = ()) -> str:
        """Start a container ``name`` in which ``vllm serve FLAGS`` runs; return its id."""
        shared = [f"--volume={self.share}:/share", *(f"--volume={mount}" for mount in self.mounts)]
        words = ["run", "--detach", f"--name={name}", "--network=host", *shared, *options, IMAGE]
        return self.cli(*words, "/opt/vllm", "serve", *flags).splitlines()[-1]

    def remove(self, name: str) -> None:
        """End and remove a container, if it is there."""
        self.cli("rm", "--force", name, check=False)

    def start_service(self) -> None:
        """Start the service and wait until it answers."""
        self.service = service = self.serve()

        def answers() -> bool:
            if service.poll() is not None:
                raise AssertionError(f"{self.runtime}'s service ended with {service.returncode}: {self.log[-4000:]}")
            ping = ["curl", "-s", "--max-time", "1", "--unix-socket", str(self.socket), "http://rig/_ping"]
            return subprocess.run(ping, capture_output=True, check=False).stdout == b"OK"

        wait_for(answers, f"{self.runtime} answers")

    def stop_service(self) -> None:
        """End the service; the containers go on."""
        assert self.service is not None
        self.service.terminate()
        try:
            self.service.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.service.kill()
            self.service.wait(_PATIENCE)
        self.service = None

    @property
    def log(self) -> str:
        """Return what the service has written."""
        return (self.rootfs / "service.log").read_text(errors="replace")

    def load(self) -> None:
        """Give the runtime the image."""
        importing = [*self.client, "import", "-", IMAGE]
        subprocess.run(
            importing,
            input=image(),
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
            env=self.environ,
            cwd=self.rootfs,
        )

    def clear(self) -> None:
        """Remove every container."""
        at_once = ["--time=0"] if self.runtime == "podman" else []
        for each in self.cli("ps", "--all", "--quiet", check=False).split():
            self.cli("rm", "--force", *at_once, each, check=False)


def python() -> str:
    """Return a Python that can be mounted into a container: the host's, or the one that runs this."""
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else str(Path(sys.executable).resolve())


def image() -> bytes:
    """Return a root file system as a tar archive: the links of a merged ``/usr``, a few directories, the engine."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "opt", "share"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        text = f"#!{python()}\n{_ENGINE}".encode()
        entry = tarfile.TarInfo("opt/vllm")
        entry.mode, entry.size = 0o755, len(text)
        archive.addfile(entry, io.BytesIO(text))
    return out.getvalue()


def _mounts() -> list[str]:
    prefix = str(Path(python()).resolve().parents[1])
    return ["/usr:/usr:ro", *([] if prefix.startswith("/usr") else [f"{prefix}:{prefix}:ro"])]


def missing(*programs: str) -> str | None:
    """Return why there can be no rig here, None where it can be."""
    if os.geteuid() != 0:
        return "containers of the rig need root"
    absent = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds``; AssertionError where it does not within a minute."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {_PATIENCE:.0f} s: {what}")
        time.sleep(0.05)


def remove_groups(name: str) -> None:
    """Remove what a runtime left of its cgroups ``name``; those that are in use stay."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
