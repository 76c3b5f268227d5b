from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from budget_exporter.publish.exposition import Exposition
from tests.publish import snapshots

GOLDENS = sorted((Path(__file__).parent / "golden").glob("*.prom"))
pytestmark = [
    pytest.mark.real_part("promtool"),
    pytest.mark.skipif(
        shutil.which("promtool") is None and "CI" not in os.environ, reason="promtool (apt: prometheus) is missing"
    ),
]


def check(exposition: bytes) -> tuple[int, bytes]:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition, capture_output=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_promtool_has_nothing_to_say_of_a_golden(golden: Path) -> None:
    assert check(golden.read_bytes()) == (0, b"")


def test_promtool_has_nothing_to_say_of_the_whole_exposition_with_the_processs_own_figures() -> None:
    assert check(Exposition().render(snapshots.healthy()).text) == (0, b"")


def test_promtool_would_have_something_to_say() -> None:
    assert check(b"# TYPE budget_used_gigabytes counter\nbudget_used_gigabytes 1\n")[0] != 0
