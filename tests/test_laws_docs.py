"""docs/laws.md is what the docstrings make, and they say of every law where it comes from."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from budget_exporter.budget.choose import LAWS
from budget_exporter.budget.laws import Law
from budget_exporter.publish.laws_document import markdown
from tests.test_imports import ROOT, SOURCES, module_of

PAGE = ROOT / "docs/laws.md"
ROWS = re.findall(r"^\| `(\w+)` \| (\S+) (?:to before (\S+)|and later.*) \| (.+) \|$", markdown(), re.MULTILINE)


def test_the_page_is_what_the_docstrings_make() -> None:
    assert PAGE.read_text("utf-8") == markdown(), "run: make docs"


def version(numbers: tuple[int, ...] | None) -> str:
    return "" if numbers is None else ".".join(map(str, numbers))


def test_every_law_has_a_row_with_its_versions_in_the_order_of_the_table() -> None:
    assert [(name, since, until) for name, since, until, _ in ROWS] == [
        (law.name, version(law.since), version(law.until)) for law in LAWS
    ]
    assert all(text.strip() for *_, text in ROWS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{version(law.since)}")
def test_every_law_says_its_source_and_its_formula(law: Law) -> None:
    module = __import__(type(law).__module__, fromlist=["__doc__"])
    assert isinstance(module, ModuleType)
    assert module.__doc__ is not None
    assert re.search(r"^Source: ", module.__doc__, re.MULTILINE)
    assert re.search(r"^    .+ = ", module.__doc__, re.MULTILINE)
    assert module.__doc__.strip() in markdown()


def test_every_module_of_the_laws_is_on_the_page() -> None:
    named = [path.relative_to(ROOT) for path in SOURCES if module_of(path).startswith("budget_exporter.budget.")]
    assert [path for path in named if f"`{path}`" not in markdown()] == []
    assert len(named) > 20
