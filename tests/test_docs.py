from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from budget_exporter import config
from budget_exporter.cli import COMMANDS, SCENARIOS, main
from budget_exporter.publish.catalogue import CATALOGUE
from budget_exporter.publish.document import markdown
from budget_exporter.roots import Roots
from budget_exporter.sources import INTERVALS, SOURCES, WHAT, load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CONFIGURATION = (ROOT / "docs/configuration.md").read_text("utf-8")
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
PAGES = [
    ROOT / "README.md",
    *sorted(path for room in ("docs", "alerts", "deploy") for path in (ROOT / room).rglob("*.md")),
]
OURS = re.compile(r"--(?:no-)?(?:config|web|path|state|source|log|scenario|version|if-nothing)[a-z.-]*")
"""Flags of the exporter; those of the engine begin otherwise."""


def test_metrics_page_is_what_the_catalogue_makes() -> None:
    written = (ROOT / "docs/metrics.md").read_text("utf-8")
    assert written == markdown(), "run: python -m budget_exporter.publish.document > docs/metrics.md"


def test_metrics_page_has_a_row_for_every_metric() -> None:
    rows = re.findall(r"^\| `(budget_\w+)` \| (?:gauge|counter) \|", markdown(), re.MULTILINE)
    assert rows == list(CATALOGUE)


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_help_is_one_sentence_that_a_table_can_hold(metric: object) -> None:
    text = getattr(metric, "help")  # noqa: B009 - pytest hands over an object
    assert text.endswith(".")
    assert "|" not in text
    assert "\n" not in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_within_the_project_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_flag_that_is_named_is_one_of_the_exporter(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    help_of = {*_flags("serve", capsys), *_flags("demo", capsys)}
    known = help_of | {flag.replace("--source.", "--no-source.") for flag in help_of}
    named = {flag.rstrip(".") for flag in OURS.findall(page.read_text("utf-8"))}
    assert named - known - {"--source", "--no-source", "--no-"} == set()  # --[no-]source.NAME


def _flags(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z.-]*", capsys.readouterr().out))


def test_every_flag_is_in_the_page_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    flags = {flag for flag in _flags("demo", capsys) if not flag.startswith(("--source.", "--no-source."))}
    assert {flag for flag in flags if flag not in CONFIGURATION} == set()


def test_the_help_says_of_each_source_what_it_reads() -> None:
    assert list(WHAT) == list(SOURCES)


def test_the_page_of_sources_and_the_readme_name_the_sources_there_are() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs/sources.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(SOURCES)
    assert [name for name in SOURCES if f"`{name}`" not in README] == []


def test_the_page_of_the_configuration_tells_the_intervals() -> None:
    row = r"^\| `([a-z_]+)` \| (\d+) (m?s|min|h) \| (\d+) (m?s|min|h) \| (\d+) (m?s|min|h) \|"
    told: dict[str, object] = {}
    for name, *cells in re.findall(row, CONFIGURATION, re.MULTILINE):
        low, default, high = (int(number) * UNITS[unit] for number, unit in zip(cells[::2], cells[1::2], strict=True))
        told[name] = (pytest.approx(low), pytest.approx(high))
        # Gaudi's looks less often where it has only hl-smi, as here.
        module = sys.modules[type(load(name, Roots())).__module__]
        assert inspect.signature(module.source).parameters["interval"].default == pytest.approx(default), name
    assert told == INTERVALS


def test_the_readme_runs_commands_and_targets_that_exist() -> None:
    words = re.findall(r"^budget-exporter (\w+) --scenario ([\w-]+)", README, re.MULTILINE)
    assert {scenario for command, scenario in words if command in COMMANDS} == set(SCENARIOS)
    targets = set(re.findall(r"`make (\w+)`|^make (\w+)", README, re.MULTILINE))
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {first or second for first, second in targets} <= made


@pytest.mark.parametrize("page", [README, CONFIGURATION], ids=["README", "configuration"])
def test_the_configuration_of_a_page_is_one(page: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    registry = tmp_path / "registry.yaml"
    registry.touch()
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("/etc/budget-exporter/registry.yaml", str(registry)))
    engine, other = config.load(path, frozenset(SOURCES)).engines
    assert engine.contract_tokens == 401_408
    assert other.exclude
