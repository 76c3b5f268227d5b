"""The whole exporter over a synthetic Neuron host: what it shows, what it opens, and what another's reader says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from budget_exporter.devices import neuron
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.hosts import neuron_tree as tree
from tests.integration.processes import exporter, until
from tests.real_parts import program, unavailable

ROOT = Path(__file__).parents[2]
OPTIMUM = ROOT / ".cache/optimum-neuron-0.4.5"
FORBIDDEN = ("torch", "torch_neuronx", "torch_xla", "libneuronxla", "libtorch_neuronx_lite", "nrtpy", "vllm_neuron")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    tree.build(tmp_path / "sys", devices=2)
    return tmp_path / "sys"


def watching(sysfs: Path) -> Sequence[str]:
    only = [f"--no-source.{name}" for name in ("journal", "systemd", "podman", "docker", "containers", "host")]
    return ["serve", f"--path.sysfs={sysfs}", "--state.file=", *only]


@pytest.mark.real_part("strace")
def test_the_exporter_opens_no_neuron_device_and_writes_to_no_counter(sysfs: Path, tmp_path: Path) -> None:
    """Watched for all it opens, in every thread and child: no device, no library of Neuron's, no torch, no write."""
    log = tmp_path / "calls"
    calls = "trace=open,openat,openat2,creat,truncate,ftruncate,rename,renameat,renameat2,unlink,unlinkat,ioctl"
    strace = [program("strace"), "--quiet=all", "-f", "-s", "400", "-o", str(log), "-e", calls]
    with exporter(tmp_path / "log", *watching(sysfs), prefix=strace) as running:
        until(lambda: running.value("budget_device_memory_used_bytes", device="nd1/hbm3"), "it is sampled", 60)
        until(lambda: (running.value("budget_source_success", source="neuron_hook") or 0) == 1, "hooks are read", 60)
        # strace hands signals on only where they are for it; the exporter is its child.
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        os.kill(int(children[0]), 15)
        running.process.wait(30)
    lines = log.read_text(errors="replace").splitlines()
    ours = [line for line in lines if str(sysfs) in line]
    assert len([line for line in ours if "device_mem/total" in line]) >= 16
    assert [line for line in ours if re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", line)] == []
    assert [line for line in ours if "open" not in line.split("(")[0]] == []
    opened = [match[1] for line in lines if (match := re.search(r'"([^"]*)"', line))]
    assert [path for path in opened if path.startswith("/dev/neuron")] == []
    loaded = [path for path in opened if re.search(r"/lib(nrt|nccom|neuron)[^/]*\.so|/(torch|libneuronxla)/", path)]
    assert loaded == []


def test_no_source_of_neuron_s_imports_torch_or_the_runtime(sysfs: Path) -> None:
    code = f"""
import asyncio, json, sys
from pathlib import Path
from budget_exporter import sources
from budget_exporter.roots import Roots
roots = Roots(sysfs=Path({str(sysfs)!r}))
assert len(sources.load("neuron", roots).read(frozenset()).devices) == 8
sources.load("neuron_hook", roots).read(frozenset([1]))
try: asyncio.run(sources.load("neuron_monitor", roots).read(frozenset()))
except Exception as error: print(error, file=sys.stderr)
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)).isdisjoint(FORBIDDEN)


READER = """
import json, sys
from pathlib import Path
from optimum.neuron.utils import neuron_device_memory as theirs
theirs.SYSFS_NEURON_BASE = Path(sys.argv[1]) / "devices/virtual/neuron_device"
for _ in sys.stdin:
    found = theirs.get_neuron_device_memory().devices
    print(json.dumps({f"{device} {core}": [memory.total_memory(), {n: c.total for n, c in memory.categories.items()}]
                      for device, cores in found.items() for core, memory in cores.items()}), flush=True)
"""


@pytest.fixture
def optimum(tmp_path: Path) -> Path:
    """Give the one file of optimum-neuron that reads these counters, without the rest of it, which needs torch."""
    path = OPTIMUM / "optimum/neuron/utils/neuron_device_memory.py"
    if not path.exists():
        unavailable("optimum-neuron 0.4.5 (make test installs it)")
    alone = tmp_path / "alone/optimum/neuron/utils"
    alone.mkdir(parents=True)
    (alone / path.name).write_bytes(path.read_bytes())
    return tmp_path / "alone"


@pytest.fixture
def theirs(optimum: Path, sysfs: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", READER, str(sysfs)]
    with subprocess.Popen(
        command, env={"PYTHONPATH": str(optimum)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child


@pytest.mark.real_part("optimum-neuron")
def test_the_reader_of_optimum_neuron_says_the_same(theirs: subprocess.Popen[str], sysfs: Path) -> None:
    """It adds the categories up where we read the total: two ways to the same bytes of every core."""
    assert theirs.stdin is not None
    assert theirs.stdout is not None
    now = [0.0]
    source = neuron.source(Roots(sysfs=sysfs), monotonic=lambda: now[0])
    for tensors in (0, 14 * GIB, 15 * GIB + 4096, 5 * MIB):
        tree.hold(sysfs, 0, 0, {**tree.PARTS, "tensors": tensors})
        tree.hold(sysfs, 1, 7, {**tree.PARTS, "dma_rings": tensors // 4})
        theirs.stdin.write("read\n")
        theirs.stdin.flush()
        said = json.loads(theirs.stdout.readline())
        # Beyond the time after which the categories are looked at again.
        now[0] += 11.0
        report = source.read(frozenset())
        ours = {
            f"neuron{sample.identity.device[2]} neuron_core{core.core}": [core.used, dict(core.parts)]
            for sample in report.devices
            for core in sample.memory.cores
        }
        assert report.faults == ()
        assert ours == said
    source.close()
    theirs.stdin.close()


READS = """
import json, sys
from pathlib import Path
from budget_exporter.devices import neuron
from budget_exporter.roots import Roots
source = neuron.source(Roots(sysfs=Path(sys.argv[1])))
for _ in range(4):
    report = source.read(frozenset())
    print(json.dumps([{s.identity.device: s.memory.used for s in report.devices}.get("nd0/hbm0"), report.faults]))
"""


@pytest.mark.real_part("strace")
@pytest.mark.parametrize(
    ("injection", "failed"),
    [
        # The first read of all holds the total against its parts.
        ("error=ENODEV:when=3", None),
        ("retval=0:when=3", None),
        ("error=ENODEV:when=3..4", "No such device"),
        ("error=EIO:when=3..4", "Input/output error"),
        ("error=EPERM:when=3", "Operation not permitted"),
    ],
)
def test_a_driver_that_is_loaded_anew_costs_a_sample_at_most(sysfs: Path, injection: str, failed: str | None) -> None:
    target = tree.core_file(sysfs, 0, 0, "total").resolve()
    command = [program("strace"), "--quiet=all", "-o", os.devnull, "-P", str(target)]
    command += ["-e", "trace=pread64", "-e", f"inject=pread64:{injection}", sys.executable, "-c", READS, str(sysfs)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    used = 14 * GIB + 2 * sum(tree.PARTS.values())
    healthy = [used, []]
    second = healthy if failed is None else [None, [f"nd0/hbm0: neuron_core0: total: {failed}"]]
    assert [json.loads(line) for line in out.splitlines()] == [healthy, second, healthy, healthy]
