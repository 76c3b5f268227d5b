"""A file system that really hangs under an engine's model: one thread waits for it, nothing else does."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import build, vllm_engine
from budget_exporter.engines.model_reader import MOST_HANGING, SILENT
from budget_exporter.engines.procfs import ProcfsSource, source
from budget_exporter.facts.model import ModelFiles
from budget_exporter.roots import Roots
from tests.real_parts import unavailable

pytestmark = pytest.mark.real_part("fuse")

SERVE = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve")
DETACH = 2
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


class Hung:
    """A FUSE mount whose server never answers; ``release`` ends it, as a dead server does."""

    def __init__(self, place: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._place = os.fsencode(place)
        try:
            self._server = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            unavailable(f"/dev/fuse: {error.strerror}")
        options = f"fd={self._server},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"hung", self._place, b"fuse", 0, options):
            why = os.strerror(ctypes.get_errno())
            os.close(self._server)
            unavailable(f"mount: {why} (needs root and CAP_SYS_ADMIN)")

    def release(self) -> None:
        if self._server >= 0:
            os.close(self._server)
            self._server = -1

    def unmount(self) -> None:
        self.release()
        self._libc.umount2(self._place, DETACH)


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Hung]:
    place = tmp_path / "root/models/hung"
    place.mkdir(parents=True)
    mount = Hung(place)
    yield mount
    mount.unmount()


def models(finder: ProcfsSource) -> dict[int, ModelFiles]:
    sightings, faults = finder.find()
    assert faults == []
    return {each.main.pid: each.model_files for each in sightings if each.model_files is not None}


def waiting() -> int:
    return sum(thread.name == "model files" for thread in threading.enumerate())


def test_a_model_on_a_file_system_that_hangs_costs_nothing_but_its_own_figures(tmp_path: Path, hung: Hung) -> None:
    before = waiting()
    root = tmp_path / "root"
    (root / "models/tiny").mkdir()
    (root / "models/tiny/config.json").write_text(json.dumps(LLAMA))
    hanging = [
        replace(process, argv=(*SERVE, "/models/hung/model"))
        for pid in range(4000, 4000 + 100 * (MOST_HANGING + 2), 100)
        for process in vllm_engine(pid, SERVE, {}, root=root)[:1]
    ]
    build(
        tmp_path / "proc", [*vllm_engine(3000, (*SERVE, "/models/tiny"), {}, root=root), *hanging], 4_000_000_000, "b"
    )
    finder = source(Roots(procfs=tmp_path / "proc"))
    deadline = time.monotonic() + 10
    while models(finder)[3000] is SILENT:
        assert time.monotonic() < deadline
    began = time.monotonic()
    found = models(finder)
    again = time.monotonic() - began
    assert found.pop(3000).config is not None
    assert len(found) == MOST_HANGING + 2
    assert set(found.values()) == {SILENT}
    assert waiting() - before == MOST_HANGING
    print(f"one look with {MOST_HANGING} hanging reads: {again * 1000:.1f} ms")  # noqa: T201 - the figure of this test
    hung.release()
    while any(files is SILENT for files in models(finder).values()):
        assert time.monotonic() < deadline
    assert all("not connected" in note for pid, f in models(finder).items() if pid != 3000 for note in f.notes)
    assert waiting() == before
