"""The state file: everything survives, and no broken file stops the exporter."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from budget_exporter import state
from budget_exporter.facts.boot import BootReport, Failure, Plan, Printed, RankFacts
from budget_exporter.facts.device import HighWater
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.snapshot import FreeAtInit

FULL = state.State(
    saved_at=1000.5,
    devices=(
        HighWater(
            "0000:03:00.0",
            "GPU-1",
            "qwen@b:7",
            used=30,
            at=2.0,
            since=1.0,
            all_time=31,
            baseline=1,
            window=((999.0, 30), (1000.0, 29)),
        ),
    ),
    engines={
        "qwen": state.EngineMemory(
            main=ProcessKey(4242, 7, "b"),
            started_at=1.0,
            last_seen=1000.0,
            restarts=3,
            nrestarts=2,
            failures={"graph_capture_oom": 3},
            last_failure=Failure(9.0, "capturing", "graph_capture_oom", 1, Printed(50 << 20), Printed(0)),
            report=BootReport(
                version="0.28.0",
                phase="serving",
                ranks={0: RankFacts(graph_capture=Printed(-64424509, 5368709)), 1: RankFacts(plan=Plan(slots=7762))},
                kv_tokens=401408,
                args={"max_model_len": "200704"},
            ),
            log="/var/log/vllm.log",
            cursor="1:2:3",
            free_at_init={"0": FreeAtInit(33597381059, 5368709, "log")},
        )
    },
)


def test_everything_comes_back_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.save(path, FULL)
    assert state.load(path) == FULL
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_the_file_is_ours_alone(tmp_path: Path) -> None:
    state.save(tmp_path / "state.json", state.State())
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


def test_a_missing_file_is_a_new_state(tmp_path: Path) -> None:
    assert state.load(tmp_path / "state.json") == state.State()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 99}',
        b'{"devices": [{"device": 3}]}',
        b"\xff\xfe",
        b"null",
        b'{"engines":' * 100_000,
        b'{"engines": {"a": {"restarts": -1}}}',
        b'{"engines": {"a": {"failures": {"unknown": -1}}}}',
    ],
)
def test_a_broken_file_is_set_aside_and_named(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert state.load(path) == state.State()
    assert not path.exists()
    (aside,) = tmp_path.glob("state.json.broken-*")
    assert aside.read_bytes() == content
    assert str(path) in caplog.text


def test_every_cut_of_a_file_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.save(path, FULL)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert state.load(path) == state.State()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.save(path, FULL)
    (tmp_path / "blocked").mkdir()
    with pytest.raises(OSError, match="directory"):
        state.save(tmp_path / "blocked", state.State())
    assert state.load(path) == FULL
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blocked", "state.json"]


def test_a_folder_that_is_not_there_is_an_error_of_the_writer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        state.save(tmp_path / "absent" / "state.json", FULL)
