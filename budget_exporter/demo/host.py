"""The synthetic host: two R9700, one expert-offload engine in podman under a systemd unit, its log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.demo import amdgpu_tree, procfs_tree
from budget_exporter.demo.endpoint import Door, Pool
from budget_exporter.demo.procfs_tree import Process
from budget_exporter.roots import Roots
from budget_exporter.units import MIB, printed_bytes

__all__ = ["CONTAINER", "DEVICES", "FREE_AT_INIT", "UNIT", "Host", "Shape"]

UNIT = "vllm-qwen.service"
CONTAINER = "vllm-qwen"
DEVICES = tuple(card.pci for card in amdgpu_tree.R9700_PAIR)
SIZE = amdgpu_tree.R9700_SIZE
FREE_AT_INIT = printed_bytes("31.29")
"""What both cards had free before an engine came: 0.57 GiB belongs to the driver on that host."""
LOG = "var/log/vllm-qwen.log"
SOCKET = "/run/vllm-qwen.sock"
"""The engine's endpoint, inside its own root: a port would be one of the real host's."""
TICKS = os.sysconf("SC_CLK_TCK")
UPTIME = 86400
_CONTAINER_ID = "5f1d" * 16
_CONMON = 4200
_PINNED = 2 * MIB
"""System memory that each worker has the card map: pinned buffers."""

_CONFIG = """\
engines:
  - name: vllm-qwen
    match: {{unit: {unit}}}
    log: {{file: /{log}}}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """One set of flags of the synthetic engine."""

    utilization: str
    max_model_len: int
    max_num_seqs: int
    kv_cache_memory_bytes: int | None
    kv_cache_dtype: str = "fp8"
    more: tuple[str, ...] = ()
    """Further words of the command line."""

    def argv(self) -> list[str]:
        """Return the engine's command line."""
        kv_bytes = (
            [] if self.kv_cache_memory_bytes is None else ["--kv-cache-memory-bytes", str(self.kv_cache_memory_bytes)]
        )
        return [
            "/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "/models/Qwen3.8-Flash-Next-FP8",
            "--served-model-name", "Qwen3.8-Flash-Next", "--port", "7770", "--tensor-parallel-size", "2",
            "--gpu-memory-utilization", self.utilization, "--max-model-len", str(self.max_model_len),
            "--max-num-seqs", str(self.max_num_seqs), "--max-num-batched-tokens", "4096",
            "--kv-cache-dtype", self.kv_cache_dtype, *kv_bytes, "--enable-expert-offload", "--expert-precise-memory",
            *self.more,
        ]  # fmt: skip

    @staticmethod
    def environ() -> dict[str, str]:
        """Return the engine's environment; the graph charge is base + per graph."""
        return {
            "PATH": "/opt/vllm/bin:/usr/bin:/bin",
            "container": "podman",
            "PODMAN_SYSTEMD_UNIT": UNIT,
            "HIP_VISIBLE_DEVICES": "0,1",
            "VLLM_CUDAGRAPH_MEM_BASE_MB": "0",
            "VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB": "12",
        }


class Host:
    """
    A host below ``folder``, laid out by ``build`` and changed in place afterwards, from any process.

    With ``endpoint`` its engine has one that answers while this process lives; ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        folder: Path,
        cards: Sequence[amdgpu_tree.Card] = amdgpu_tree.R9700_PAIR,
        *,
        endpoint: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cards = cards
        self._clock = clock
        self.roots = Roots(folder / "sys", folder / "proc", folder / "root")
        self.config = folder / "config.yaml"
        self.log = self.roots.rootfs / LOG
        self._folder = folder
        self._root = folder / "container"
        self._door = Door(self._root / SOCKET.lstrip("/")) if endpoint else None

    def build(self) -> None:
        """Write the idle host: cards that hold only the driver's reserve, no engine, an empty log."""
        amdgpu_tree.build(self.roots.sysfs, self._cards)
        for device in DEVICES:
            self.hold(device, SIZE - FREE_AT_INIT)
        boot = int(self._clock()) - UPTIME
        cgroup = f"0::/system.slice/{UNIT}\n"
        init = Process(1, 0, ("/sbin/init",), comm="systemd", start_ticks=1)
        conmon = Process(
            _CONMON, 1, ("/usr/bin/conmon", "--api-version", "1", "-c", _CONTAINER_ID, "-n", CONTAINER),
            cgroup=cgroup, start_ticks=TICKS * 60,
        )  # fmt: skip
        procfs_tree.build(self.roots.procfs, [init, conmon], boot, "3d1219c7-c4c5-404a-aa1f-6d2a48adfda4")
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        self.config.write_text(_CONFIG.format(unit=UNIT, log=LOG), encoding="utf-8")

    def hold(self, device: str, used: int) -> None:
        """Let ``device`` hold ``used`` bytes, at most what it has."""
        amdgpu_tree.set_used(self.roots.sysfs, device, min(used, SIZE))

    def own(self, rank: int, pid: int, used: int) -> None:
        """Let the worker ``pid`` hold ``used`` bytes of the card of its ``rank``, as both drivers count them."""
        card = self._cards[rank]
        amdgpu_tree.add_kfd_process(self.roots.sysfs, pid, {card.pci: used})
        procfs_tree.open_card(
            self.roots.procfs, pid, pci=card.pci, render_minor=card.render_minor, client=pid, vram=used, gtt=_PINNED
        )

    def start(self, pid: int, shape: Shape) -> list[int]:
        """Start the engine with main process ``pid``; return the PIDs of all its processes."""
        stat = (self.roots.procfs / "stat").read_text(encoding="ascii")
        boot = int(next(line for line in stat.splitlines() if line.startswith("btime")).split()[1])
        socket = [] if self._door is None else ["--uds", SOCKET]
        self._root.mkdir(exist_ok=True)
        processes = procfs_tree.vllm_engine(
            pid, shape.argv() + socket, shape.environ(), ranks=2, ppid=_CONMON,
            cgroup=f"0::/machine.slice/libpod-{_CONTAINER_ID}.scope/container\n",
            start_ticks=int((self._clock() - boot) * TICKS), cwd="/",
            root=None if self._door is None else self._root,
        )  # fmt: skip
        for process in processes:
            procfs_tree.add(self.roots.procfs, process)
        return [process.pid for process in processes]

    def end(self, pids: list[int]) -> None:
        """End processes, children first."""
        for pid in reversed(pids):
            if (self.roots.sysfs / "class/kfd/kfd/proc" / str(pid)).is_dir():
                amdgpu_tree.remove_kfd_process(self.roots.sysfs, pid)
            procfs_tree.remove(self.roots.procfs, pid)

    def serve(self, pool: Pool | None) -> None:
        """Let the engine's endpoint answer for ``pool``, for None no longer; without an endpoint nothing happens."""
        if self._door is not None:
            self._door.show(pool)

    def say(self, lines: list[str]) -> None:
        """Append lines to the engine's log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
