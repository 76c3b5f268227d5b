"""A log explained: every boot with its death and its figures as printed; bad input is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from budget_exporter.cli import main

LOG = (
    "(APIServer pid=1) INFO 03-02 10:00:00 [api_server.py:10] vLLM API server version 0.19.0\n"
    "(EngineCore pid=9) INFO 03-02 10:00:20 [runner.py:5] Model loading took 20.25 GiB memory and 12.5 seconds\n"
    "(EngineCore pid=9) INFO 03-02 10:00:40 [gpu_worker.py:6] Available KV cache memory: 0.62 GiB\n"
    "(EngineCore pid=9) ERROR 03-02 10:00:41 [core.py:7] ValueError: To serve at least one request with the models's "
    "max seq len (262144), (8.00 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(0.62 GiB). Based on the available memory, the estimated maximum model length is 20336.\n"
)
BLOCKS = (
    "INFO 06-28 23:40:03 api_server.py:1] vLLM API server version 0.6.1\n"
    "INFO 06-28 23:40:09 executor.py:2] # GPU blocks: 100, # CPU blocks: 5\n"
)


def test_a_death_is_told_with_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    assert main(["explain", str(tmp_path / "log")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("boot 1: vLLM 0.19.0, came to failing\n  died while allocating_kv: kv_below_max_len\n")
    assert "\n  line 2: weights 20.25 GiB\n" in said.replace(" rank 0", "")


def test_it_is_one_json_object_a_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG + LOG)
    assert main(["explain", "--json", str(tmp_path / "log")]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["death"] == second["death"]
    assert first["death"] == {
        "phase": "allocating_kv",
        "cause": "kv_below_max_len",
        "presumed": False,
        "rank": first["death"]["rank"],
        "tried_bytes": first["death"]["tried_bytes"],
        "free_bytes": first["death"]["free_bytes"],
    }
    assert {(it["line"], it["name"], it["value"], it["unit"]) for it in second["figures"]} >= {
        (6, "weights", "20.25", "GiB")
    }


def test_flags_tell_what_the_log_does_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(BLOCKS)
    assert main(["explain", str(tmp_path / "log")]) == 0
    assert "died" not in capsys.readouterr().out
    assert main(["explain", "--flags", "m --max-model-len 4096", str(tmp_path / "log")]) == 0
    assert "died while allocating_kv: kv_below_max_len (presumed)" in capsys.readouterr().out


def test_standard_input_is_read_and_a_log_without_an_engine_is_said() -> None:
    command = [sys.executable, "-m", "budget_exporter", "explain", "-"]
    done = subprocess.run(command, input=LOG.encode(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"kv_below_max_len" in done.stdout
    done = subprocess.run(command, input=b"\x00\xff nothing\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"budget-exporter: -: no engine speaks in it\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explain", "/nonexistent/log"], "/nonexistent/log: No such file or directory"),
        (["explain", "/"], "/: Is a directory"),
        (["explain", "--flags", "'", "-"], "--flags: No closing quotation"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"budget-exporter: {says}\n"
