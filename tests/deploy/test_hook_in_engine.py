"""The hook as it runs inside an engine: beside a vLLM and a torch of our own making, each test in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.devices._hook_folders import Writers
from budget_exporter.devices._hook_record import parse

HOOK = Path(__file__).parents[2] / "deploy/neuron-hook"
WRAPPER = """
class WorkerWrapperBase:
    def __init__(self, worker): self.worker = worker
    def __getattr__(self, name): return getattr(self.worker, name)
"""
"""What matters of vLLM's: it hands on what it lacks."""
BEFORE = """
import json, os, sys, threading, time, types
calls = []
class Runtime:
    answers = [(5, 3)]
    def __init__(self): calls.append("made")
    def get_vnc_memory_stats(self):
        calls.append("asked")
        answer = self.answers[min(calls.count("asked"), len(self.answers)) - 1]
        if isinstance(answer, BaseException): raise answer
        return answer
def install_torch(**classes):
    sys.modules["torch"] = types.SimpleNamespace(classes=types.SimpleNamespace(**classes))
class Worker:
    rank, on_neuron, sizes = 0, True, {}
    @property
    def vllm_config(self):
        return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**self.sizes))
    def _use_neuron_device(self): return self.on_neuron
    def compile_or_warm_up_model(self, *words, **more):
        calls.append("warmed")
        return ("result", words, more)
def hooked(): return [t for t in threading.enumerate() if t.name == "budget-exporter-neuron-hook"]
def until(look, limit=20):
    end = time.monotonic() + limit
    while not look():
        assert time.monotonic() < end, (calls, os.listdir(folder))
        time.sleep(0.01)
def records(): return sorted(name for name in os.listdir(folder) if name.endswith(".json"))
folder = os.environ["FOLDER"]
install_torch(neuron=types.SimpleNamespace(Runtime=Runtime))
from budget_exporter_neuron_hook import register
"""


class Site:
    """A folder of modules that stand in for vLLM's, and one for records."""

    def __init__(self, folder: Path, module: str) -> None:
        self.modules, self.records = folder / "site", folder / "records"
        self.records.mkdir()
        path = self.modules / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(WRAPPER)

    def run(self, code: str, **environ: str) -> Any:
        """Run ``code`` behind the words above; return what it printed, as JSON."""
        surroundings = {
            "PYTHONPATH": f"{HOOK}:{self.modules}",
            "FOLDER": str(self.records),
            "BUDGET_NEURON_HOOK_DIR": str(self.records),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        }
        surroundings = {name: text for name, text in surroundings.items() if text}
        command = [sys.executable, "-W", "error", "-c", BEFORE + code]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, "vllm.v1.worker.worker_base")


LATER = """
register()
before = list(calls)
from vllm.v1.worker.worker_base import WorkerWrapperBase
wrapped = WorkerWrapperBase(Worker())
during = list(calls)
result = wrapped.compile_or_warm_up_model(1, two=2)
until(records)
print(json.dumps([before, during, calls[:3], result, len(hooked()), json.load(open(f"{folder}/{records()[0]}"))]))
"""


def test_the_runtime_is_asked_only_after_the_warm_up_has_returned(site: Site) -> None:
    before, during, then, result, threads, record = site.run(LATER)
    assert (before, during, then) == ([], [], ["warmed", "made", "asked"])
    assert (result, threads) == (["result", [1], {"two": 2}], 1)
    assert (record["used"], record["limit"], record["rank"], record["samples"]) == (5, 8, 0, 1)


@pytest.mark.parametrize("module", ["vllm.v1.worker.worker_base", "vllm.worker.worker_base"])
def test_a_wrapper_that_is_there_already_will_do_too(tmp_path: Path, module: str) -> None:
    """As in a worker that was spawned; in older releases the wrapper is in another module."""
    code = LATER.replace("vllm.v1.worker.worker_base", module)
    imported = f"import {module}\n"
    assert Site(tmp_path, module).run(imported + code)[2] == ["warmed", "made", "asked"]


def test_a_wrapper_that_has_the_method_itself_is_called_by_its_own(site: Site) -> None:
    path = site.modules / "vllm/v1/worker/worker_base.py"
    path.write_text(WRAPPER + "    def compile_or_warm_up_model(self, *a, **k): return 'own', a, k\n")
    assert site.run(LATER)[3] == ["own", [1], {"two": 2}]


def test_being_called_again_changes_nothing(site: Site) -> None:
    code = LATER.replace("register()", "register(); register()").replace("until(records)", "register(); until(records)")
    again = "\nwrapped.compile_or_warm_up_model()\n"
    threads = site.run(code.replace("until(records)", again + "until(records)"))[4]
    assert threads == 1


QUIET = """
import importlib
finders = list(sys.meta_path)
register()
from vllm.v1.worker.worker_base import WorkerWrapperBase
worker = Worker()
worker.on_neuron = os.environ.get("ON_NEURON", "1") == "1"
WorkerWrapperBase(worker).compile_or_warm_up_model()
untouched = "compile_or_warm_up_model" not in vars(WorkerWrapperBase)
print(json.dumps([calls, len(hooked()), os.listdir(folder) if os.path.isdir(folder) else None, untouched]))
"""


@pytest.mark.parametrize(
    ("environ", "untouched"),
    [
        ({"BUDGET_NEURON_HOOK_DIR": ""}, True),
        ({"VLLM_NEURON_CPU_MODE": "1"}, True),
        ({"VLLM_NEURON_CPU_COMPILE": "true"}, True),
        ({"ON_NEURON": "0"}, False),
    ],
)
def test_where_it_is_off_it_does_nothing(site: Site, environ: dict[str, str], *, untouched: bool) -> None:
    assert site.run(QUIET, **environ) == [["warmed"], 0, [], untouched]


def test_a_worker_that_does_not_say_what_it_runs_on_is_left_alone_unless_it_is_the_plugin_s(site: Site) -> None:
    code = QUIET.replace("worker = Worker()", "del Worker._use_neuron_device; worker = Worker()")
    assert site.run(code)[:2] == [["warmed"], 0]
    plugin = code.replace("worker = Worker()", "Worker.__module__ = 'vllm_neuron.worker'; worker = Worker()")
    assert site.run(plugin)[1] == 1


def test_without_the_variable_nothing_else_of_it_is_imported(site: Site) -> None:
    code = "register()\nprint(json.dumps([m for m in sys.modules if m.startswith('budget_exporter_neuron_hook')]))"
    assert site.run(code, BUDGET_NEURON_HOOK_DIR="") == ["budget_exporter_neuron_hook"]


def test_it_brings_in_neither_torch_nor_vllm(site: Site) -> None:
    code = """
del sys.modules["torch"]
register()
from budget_exporter_neuron_hook import _publish
publisher = _publish.Publisher(folder, 0.01, {"rank": 0, "replica": 0})
publisher.start()
until(lambda: not hooked())
print(json.dumps([m for m in sys.modules if m.partition(".")[0] in ("torch", "vllm", "libneuronxla", "torch_neuronx")]))
"""
    assert site.run(code) == []


def test_a_warm_up_that_fails_fails_as_before_and_nothing_starts(site: Site) -> None:
    code = """
register()
from vllm.v1.worker.worker_base import WorkerWrapperBase
def fail(self): raise MemoryError("no room")
Worker.compile_or_warm_up_model = fail
try: WorkerWrapperBase(Worker()).compile_or_warm_up_model()
except MemoryError as error: print(json.dumps([str(error), calls, len(hooked())]))
"""
    assert site.run(code) == ["no room", [], 0]


def test_a_module_that_cannot_be_imported_fails_as_before(site: Site) -> None:
    (site.modules / "vllm/v1/worker/worker_base.py").write_text("raise KeyError('torn')")
    code = "register()\ntry: import vllm.v1.worker.worker_base\nexcept KeyError as error: print(json.dumps(str(error)))"
    assert site.run(code) == "'torn'"


def test_a_module_without_the_wrapper_is_imported_as_ever(site: Site) -> None:
    (site.modules / "vllm/v1/worker/worker_base.py").write_text("there = 1")
    assert site.run("register()\nimport vllm.v1.worker.worker_base as m\nprint(json.dumps(m.there))") == 1


def test_a_child_that_was_forked_asks_for_itself_and_only_after_its_own_warm_up(site: Site) -> None:
    code = """
register()
from vllm.v1.worker.worker_base import WorkerWrapperBase
WorkerWrapperBase(Worker()).compile_or_warm_up_model()
until(records)
read, write = os.pipe()
if os.fork() == 0:
    alone = len(hooked())
    WorkerWrapperBase(Worker()).compile_or_warm_up_model()
    until(lambda: len(records()) == 2)
    os.write(write, json.dumps([alone, len(hooked())]).encode())
    os._exit(0)
print(os.read(read, 100).decode())
"""
    assert site.run(code) == [0, 1]


PUBLISHER = """
from budget_exporter_neuron_hook import _publish
Runtime.answers = ANSWERS
publisher = _publish.Publisher(folder, 0.01, {"rank": 1, "replica": 0})
publisher.start()
"""


LISTEN = """
import logging
said = []
class Listener(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
logging.getLogger("budget_exporter_neuron_hook").addHandler(Listener())
"""


def publisher(answers: str) -> str:
    return PUBLISHER.replace("ANSWERS", answers)


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ("[RuntimeError('x')]", "RuntimeError"),
        ("[(-1, -1)]", "no figures"),
        ("[(5, -1)]", "no figures"),
        ("[None]", "TypeError"),
        ("[('a', 'b')]", "ValueError"),
    ],
)
def test_after_five_failures_it_never_asks_again_and_leaves_nothing(site: Site, answers: str, failure: str) -> None:
    code = publisher(answers).replace("0.01", "0.1")
    rest = """
until(records)
record = json.load(open(f"{folder}/{records()[0]}"))
until(lambda: not hooked())
print(json.dumps([calls.count("asked"), record, os.listdir(folder), said]))
"""
    asked, record, left, said = site.run(LISTEN + code + rest)
    assert (asked, left) == (5, [])
    assert said == ["the runtime was asked in vain 5 times; it is not asked any more"]
    assert (record["failure"], "used" in record) == (failure, False)


def test_a_class_that_does_not_exist_is_tried_five_times(site: Site) -> None:
    code = (
        f"install_torch()\n{publisher('[]')}until(lambda: not hooked())\nprint(json.dumps([calls, os.listdir(folder)]))"
    )
    assert site.run(code) == [[], []]


def test_one_failure_is_survived(site: Site) -> None:
    code = publisher("[(5, 3), RuntimeError('x'), RuntimeError('x'), RuntimeError('x'), RuntimeError('x'), (6, 2)]")
    rest = """
until(lambda: calls.count("asked") > 20)
print(json.dumps([len(hooked()), json.load(open(f"{folder}/{records()[0]}"))["used"]]))
"""
    assert site.run(code + rest) == [1, 6]


def test_a_missing_folder_is_not_made_and_nothing_is_asked(site: Site) -> None:
    site.records.rmdir()
    rest = """
time.sleep(0.1)  # ten of its periods
quiet = [calls[:], os.path.exists(folder)]
os.mkdir(folder)
until(records)
print(json.dumps([*quiet, len(hooked())]))
"""
    assert site.run(publisher("[(5, 3)]") + rest) == [[], False, 1]


def test_its_record_is_what_the_exporter_reads(site: Site) -> None:
    rest = """
until(records)
print(json.dumps(open(f"{folder}/{records()[0]}").read()))
"""
    record = parse(site.run(publisher("[(18993905664, 0)]") + rest).encode())
    # A core that is full to the last byte has a limit all the same.
    assert (record.used, record.limit, record.rank, record.replica) == (18993905664, 18993905664, 1, 0)
    assert record.failure == ""


def test_the_exporter_finds_its_writer(site: Site) -> None:
    """By the real kernel's PID, start and namespace; a moment later the writer has ended, and its record is gone."""
    rest = "until(records)\nprint(json.dumps(None), flush=True)\nsys.stdin.read()"
    environ = {"PYTHONPATH": f"{HOOK}", "FOLDER": str(site.records), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", BEFORE + publisher("[(5, 3)]") + rest]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"null\n"
        (path,) = site.records.glob("*.json")
        record = parse(path.read_bytes())
        found = Writers(Path("/proc"), [child.pid]).find(record.pid, record.start_ticks, record.namespace)
        assert found == record.pid == child.pid
        assert path.name == f"vnc-{record.namespace}-{record.pid}.json"
        assert path.stat().st_mode & 0o777 == 0o644
    assert list(site.records.iterdir()) == []
    assert Writers(Path("/proc"), [child.pid]).started == {}


SWEPT = "until(lambda: 'vnc-1-1.json' not in os.listdir(folder) and len(records()) == 2)"


def test_what_killed_workers_left_an_hour_ago_is_removed(site: Site) -> None:
    rest = """
until(records)
print(json.dumps(sorted(os.listdir(folder))))
"""
    old, new, other = (site.records / name for name in ("vnc-1-1.json", "vnc-1-2.json", "other"))
    for path in (old, new, other):
        path.write_text("{}")
    # Two records are there before anything is done, and two after it.
    age = "for name in ('vnc-1-1.json', 'other'): os.utime(f'{folder}/{name}', (1, 1))\n"
    left = site.run(age + publisher("[(5, 3)]") + SWEPT + rest)
    assert old.name not in left
    assert {new.name, other.name} <= set(left)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"world_size": 4, "distributed_executor_backend": "mp", "data_parallel_index": 1}, {"rank": 0, "replica": 1}),
        ({"world_size": 1, "distributed_executor_backend": "uni", "data_parallel_rank": 0}, {"rank": 0, "replica": 0}),
        # One process owns the cores of four ranks, and which one it tells of is not documented.
        ({"world_size": 4, "distributed_executor_backend": "uni"}, {"rank": None, "replica": None}),
    ],
)
def test_whose_it_is(site: Site, sizes: dict[str, Any], expected: dict[str, Any]) -> None:
    code = f"""
from budget_exporter_neuron_hook import _publish
worker = Worker()
worker.sizes = {sizes!r}
print(json.dumps(_publish.whose(worker)))
"""
    assert site.run(code) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 10), ("1", 10), ("15", 15), ("1e9", 300), ("nan", 10), ("inf", 300), ("x", 10), ("-5", 10)],
)
def test_no_period_is_shorter_than_ten_seconds(site: Site, text: str, seconds: float) -> None:
    code = f"import budget_exporter_neuron_hook as hook\nprint(json.dumps(hook._interval({text!r})))"
    assert site.run(code) == seconds


def test_what_a_sample_costs_its_thread(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    rest = """
until(lambda: calls.count("asked") > 200)
print(json.dumps(json.load(open(f"{folder}/{records()[0]}"))))
"""
    record = site.run(publisher("[(5, 3)]") + rest)
    each = record["cpu_seconds"] / record["samples"]
    assert each < 0.005
    with capsys.disabled():
        sys.stdout.write(f"\nthe hook: {each * 1e6:.0f} us of its thread's CPU a sample, over {record['samples']}\n")
