from __future__ import annotations

import re
from pathlib import Path

import pytest

from budget_exporter.publish.catalogue import CATALOGUE
from budget_exporter.publish.document import markdown

ROOT = Path(__file__).parents[1]


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
