"""
Print the budget laws as Markdown: ``python -m budget_exporter.publish.laws_document > docs/laws.md``.

Everything is taken from the docstrings and from the tables of the laws; a test compares the file with what this prints.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from types import ModuleType
from typing import Any

from budget_exporter import budget
from budget_exporter.budget.choose import LAWS
from budget_exporter.budget.laws import Law, Version

__all__ = ["markdown"]

_INTRODUCTION = """\
# Budget laws

This page is generated from the docstrings of `budget_exporter/budget`:
`python -m budget_exporter.publish.laws_document` prints it.

- A law is chosen by the kind of engine and its version. An unknown version takes the newest law, one that nobody has
  examined too; the ledger then says that the law is assumed (`budget_law_info{assumed="true"}`).
- The charges and the pool of a rank sum to the request, to the byte. Where a term is not known the partition is open:
  what is known is shown, what is missing is named, and nothing is made up.
- Sizes are bytes, a GiB is 2^30.
"""
_SHARED = """
## What the laws share

The modules the laws are made of, and the public functions of each.
"""
_IDENTITY = frozenset({"since", "until", "examined_until", "name", "flavour", "changed"})
_SOURCE = re.compile(r"\bSource[^.:]{0,40}:\s.+", re.DOTALL)


def markdown() -> str:
    """Return docs/laws.md: a section for each module of laws with a table of its versions, then the shared modules."""
    parts = [_INTRODUCTION]
    for module, laws in groupby(LAWS, key=lambda law: inspect.getmodule(type(law))):
        if module is not None:
            parts.append(_section(module, list(laws)))
    parts.append(_SHARED)
    parts += [_shared(module) for module in _modules()]
    return "".join(parts)


def _section(module: ModuleType, laws: Sequence[Law]) -> str:
    names = " and ".join(dict.fromkeys(f"`{law.name}`" for law in laws))
    rows = ["| law | versions | what is new or differs |\n|---|---|---|\n"]
    for _, flavour in groupby(laws, key=lambda law: law.flavour):
        before: Law | None = None
        for law in flavour:
            rows.append(f"| `{law.name}` | {_versions(law)} | {_cell(_changed(law, before))} |\n")
            before = law
    return f"\n## {names}\n\n`{_path(module)}`\n\n{_text(module)}\n\n{''.join(rows)}"


def _versions(law: Law) -> str:
    """Return the versions a law holds for; those beyond what was examined are an assumption."""
    if law.until is not None:
        return f"{_number(law.since)} to before {_number(law.until)}"
    beyond = "" if law.examined_until is None else f", assumed from {_number(law.examined_until)}"
    return f"{_number(law.since)} and later{beyond}"


def _number(version: Version) -> str:
    return ".".join(str(part) for part in version)


def _changed(law: Law, before: Law | None) -> str:
    """Return what the row says is new with it, else the settings in which it differs from the row before it."""
    said = getattr(law, "changed", None)
    if isinstance(said, str):
        return said
    differing = [name for name in _settings(law) if before is None or getattr(before, name) != getattr(law, name)]
    told = ", ".join(f"{name.replace('_', ' ')}: {_value(getattr(law, name))}" for name in differing)
    return told or "one row for all of them"


def _settings(law: Any) -> list[str]:
    return [field.name for field in fields(law) if field.name not in _IDENTITY]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _modules() -> Iterator[ModuleType]:
    """Yield every module below ``budget``, by name, but those whose laws have a section of their own."""
    own = {type(law).__module__ for law in LAWS}
    for info in sorted(pkgutil.walk_packages(budget.__path__, f"{budget.__name__}."), key=lambda info: info.name):
        if info.name not in own:
            yield importlib.import_module(info.name)


def _shared(module: ModuleType) -> str:
    lines = [f"\n### `{_path(module)}`\n\n{_text(module)}\n"]
    listed = [_function(module, name) for name in getattr(module, "__all__", ())]
    rows = [line for line in listed if line]
    return "".join([*lines, "\n" if rows else "", *rows])


def _function(module: ModuleType, name: str) -> str:
    """Return a line for a public function of the module itself: its first sentence, and its source where it has one."""
    made = getattr(module, name)
    if not inspect.isfunction(made) or made.__module__ != module.__name__:
        return ""
    text = inspect.getdoc(made) or ""
    source = _SOURCE.search(text)
    said = [text.partition("\n\n")[0], "" if source is None else source[0].partition("\n\n")[0]]
    return f"- `{name}`: {' '.join(' '.join(part.split()) for part in said if part)}\n"


def _text(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "").strip()


def _path(module: ModuleType) -> str:
    stem = module.__name__.replace(".", "/")
    return f"{stem}/__init__.py" if hasattr(module, "__path__") else f"{stem}.py"


if __name__ == "__main__":
    sys.stdout.write(markdown())
