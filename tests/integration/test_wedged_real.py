"""A read that hangs in the kernel: its source turns stale, all else goes on, it recovers when the read returns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from budget_exporter.demo import amdgpu_tree, boot_log
from budget_exporter.demo.host import DEVICES, Host
from budget_exporter.demo.player import Engine
from budget_exporter.units import GIB
from tests.integration.incident import serve, serving_host
from tests.integration.processes import Exporter, until
from tests.integration.rig_fuse import FuseFile, fuse_file

ENGINE = "vllm-qwen"
USED, UP, SUCCESS = "budget_device_memory_used_bytes", "budget_engine_up", "budget_source_success"
DEATHS = "budget_engine_failures_total"
REPORTED, RESTARTS = "budget_reported_kv_pool_tokens", "budget_engine_restarts_total"
PROMPT = 1.0
"""Seconds a scrape may take on a busy machine; a wedged read would take for ever."""
ENDS = 5.0
"""Seconds to the exporter's end, after which systemd would not even have begun to wonder."""


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Host, Engine]:
    return serving_host(tmp_path / "host")


def counter(host: Host, device: str = DEVICES[0], name: str = "mem_info_vram_used") -> Path:
    return amdgpu_tree.card_directory(host.roots.sysfs, device) / name


def prompt(exporter: Exporter) -> float:
    """Return how long one scrape took, which is never long."""
    began = time.monotonic()
    assert exporter.get()[0] == 200
    took = time.monotonic() - began
    assert took < PROMPT
    return took


def tasks(exporter: Exporter) -> int:
    return len(list(Path(f"/proc/{exporter.pid}/task").iterdir()))


def stale(exporter: Exporter, source: str) -> None:
    """Wait until a source is said to fail, with prompt answers all the while."""

    def look() -> bool:
        prompt(exporter)
        return exporter.value(SUCCESS, source=source) == 0

    until(look, f"{source} is said to fail")


def ends(exporter: Exporter) -> None:
    began = time.monotonic()
    assert exporter.stop(ENDS) == 0
    print(f"end with a thread in a read that hangs: {time.monotonic() - began:.2f} s")  # noqa: T201 - the figure of this test


@pytest.fixture
def wedged(scene: tuple[Host, Engine]) -> Iterator[FuseFile]:
    """Give one card's counter on a file system that can hang."""
    with fuse_file(counter(scene[0])) as file:
        yield file


@pytest.mark.real_part("fuse")
def test_a_device_s_read_that_hangs_costs_its_source_alone(
    scene: tuple[Host, Engine], wedged: FuseFile, tmp_path: Path
) -> None:
    host, engine = scene
    with serve(host, tmp_path / "log") as running:
        running.ready()
        assert running.value(USED, device=DEVICES[0]) == int(wedged.text)
        threads = tasks(running)
        wedged.hang()
        stale(running, "amdgpu")
        # One thread reads all cards: of none is anything known, and nothing old is shown as new.
        until(lambda: not {name for name, _ in running.series()} & {USED}, "the cards' series end")
        assert running.value(UP, engine=ENGINE) == 1
        assert running.value(SUCCESS, source="procfs") == running.value(SUCCESS, source="file") == 1
        deaths = running.value(DEATHS, cause="first_request_oom") or 0
        host.say([line for _, line in boot_log.first_request_oom(engine.pids)])
        until(lambda: (running.value(DEATHS, cause="first_request_oom") or 0) > deaths, "the log is read")
        assert running.get("/-/ready")[0] == running.get("/-/healthy")[0] == running.get("/")[0] == 200
        assert tasks(running) == threads, "no second thread is sent after the first"
        assert running.log.count("no answer within the time limit") == 1
        wedged.text = f"{int(wedged.text) + GIB // 4}\n"
        wedged.release()
        until(lambda: running.value(USED, device=DEVICES[0]) == int(wedged.text), "the card is back")
        until(lambda: running.value(SUCCESS, source="amdgpu") == 1, "the source works again")
        assert running.value(USED, device=DEVICES[1]) is not None
        assert running.value("budget_source_interval_seconds", source="amdgpu") == 0.1
        wedged.hang()
        stale(running, "amdgpu")
        ends(running)


@pytest.mark.real_part("fuse")
def test_a_card_that_answers_slowly_is_asked_less_often_and_the_interval_says_so(
    scene: tuple[Host, Engine], wedged: FuseFile, tmp_path: Path
) -> None:
    interval, runs = "budget_source_interval_seconds", "budget_source_runs_total"
    with serve(scene[0], tmp_path / "log") as running:
        running.ready()
        wedged.delay = 0.3
        real = until(lambda: (s := running.value(interval, source="amdgpu")) and s > 1 and s, "the interval is said")
        assert 1.2 <= real < 2.5
        before, began = running.value(runs, source="amdgpu") or 0, time.monotonic()
        until(lambda: (running.value(runs, source="amdgpu") or 0) >= before + 3, "it is read all the same")
        assert time.monotonic() - began > 2
        assert running.value(USED, device=DEVICES[0]) == int(wedged.text)
        assert running.value(SUCCESS, source="amdgpu") == 1
        prompt(running)
        wedged.delay = 0.0
        until(lambda: running.value(interval, source="amdgpu") == 0.1, "it is quick again")
        assert {s for (name, _), s in running.series().items() if name == interval} >= {0.1, 1.0}


@pytest.mark.real_part("fuse")
def test_an_exporter_that_is_started_on_a_card_that_hangs_serves_all_else(
    scene: tuple[Host, Engine], wedged: FuseFile, tmp_path: Path
) -> None:
    wedged.hang()
    with serve(scene[0], tmp_path / "log") as running:
        running.ready()
        stale(running, "amdgpu")
        until(lambda: running.value(REPORTED, engine=ENGINE), "the log is read")
        assert running.value(UP, engine=ENGINE) == 1
        assert running.value(USED, device=DEVICES[1]) is None
        wedged.release()
        until(lambda: running.value(USED, device=DEVICES[0]) == int(wedged.text), "the card is there")
        wedged.hang()
        ends(running)


@pytest.mark.real_part("fuse")
def test_a_look_at_the_processes_that_hangs_leaves_the_cards_and_ends_no_engine(
    scene: tuple[Host, Engine], tmp_path: Path
) -> None:
    host, engine = scene
    with fuse_file(host.roots.procfs / "stat") as wedged, serve(host, tmp_path / "log") as running:
        running.ready()
        until(lambda: running.value(UP, engine=ENGINE) == 1, "the engine is found")
        restarts = running.value(RESTARTS, engine=ENGINE)
        wedged.hang()
        stale(running, "procfs")
        until(lambda: running.value(UP, engine=ENGINE) is None, "nothing is said of what cannot be seen")
        engine.hold(3 * GIB)
        until(lambda: abs((running.value(USED, device=DEVICES[0]) or 0) - 3 * GIB) < GIB, "the cards are read")
        assert running.value(SUCCESS, source="amdgpu") == 1
        wedged.release()
        until(lambda: running.value(UP, engine=ENGINE) == 1, "the engine is found again")
        assert running.value(RESTARTS, engine=ENGINE) == restarts
        wedged.hang()
        stale(running, "procfs")
        ends(running)


def test_a_pipe_in_the_place_of_a_counter_hangs_nothing_at_the_start_nor_when_it_is_opened_anew(
    scene: tuple[Host, Engine], tmp_path: Path
) -> None:
    """What is no regular file is never opened: it is one card's fault."""
    host, _ = scene
    text = counter(host).read_text()
    counter(host).unlink()
    os.mkfifo(counter(host))
    with serve(host, tmp_path / "log") as running:
        running.ready()
        assert running.value(SUCCESS, source="amdgpu") == 0
        assert running.value(USED, device=DEVICES[0]) is None
        assert running.value(USED, device=DEVICES[1]) is not None
        counter(host).unlink()
        counter(host).write_text(text)
        until(lambda: running.value(USED, device=DEVICES[0]) == int(text), "the card is read")
        (tmp_path / "pipe").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").rename(counter(host))
        until(lambda: running.value(USED, device=DEVICES[0]) is None, "the pipe is no counter")
        assert running.value(USED, device=DEVICES[1]) is not None
        prompt(running)
        ends(running)


def test_a_pipe_in_the_place_of_a_process_s_file_hangs_the_finder_and_nothing_else(
    scene: tuple[Host, Engine], tmp_path: Path
) -> None:
    host, _ = scene
    stat = host.roots.procfs / "stat"
    text = stat.read_text()
    stat.unlink()
    os.mkfifo(stat)
    with serve(host, tmp_path / "log") as running:
        running.ready()
        stale(running, "procfs")
        assert running.value(UP, engine=ENGINE) is None
        stat.rename(tmp_path / "pipe")
        stat.write_text(text)
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write(text)
        until(lambda: running.value(UP, engine=ENGINE) == 1, "the engine is found")
        until(lambda: running.value(USED, device=DEVICES[0]), "the cards are read")
        ends(running)
