"""Who may import whom: the rooms' directions, read from the source of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "budget_exporter"
ROOT = Path(__file__).parents[1]
PURE = frozenset({"facts", "budget", "verdicts", "units", "errors"})
"""Rooms of values and arithmetic."""
PURE_LIBRARY = frozenset(
    {
        "__future__",
        "collections",
        "bisect",
        "dataclasses",
        "decimal",
        "enum",
        "fnmatch",
        "fractions",
        "functools",
        "itertools",
        "math",
        "operator",
        "re",
        "statistics",
        "typing",
    }
)
"""All that a pure room may take from elsewhere: nothing here reads, waits or tells the time."""
OBSERVERS = frozenset({"devices", "engines", "evidence"})
BASE = frozenset({"facts", "units", "errors", "roots"})
BELOW: dict[str, frozenset[str]] = {
    "facts": frozenset({"facts"}),
    "units": frozenset({"units", "errors"}),
    "errors": frozenset({"errors"}),
    "roots": frozenset({"roots"}),
    "budget": frozenset({"budget", "facts", "units", "errors"}),
    "verdicts": frozenset({"verdicts", "budget", "facts", "units", "errors"}),
    **{room: BASE | {room} for room in OBSERVERS},
}
"""For each of these rooms every room of the package it may import."""
ONLY_FOR: dict[str, frozenset[str]] = {
    "sidecar": frozenset({"sidecar", "commands"}),
    "demo": frozenset({"demo", "commands"}),
    "commands": frozenset({"commands", "cli", "__main__"}),
}
"""For each of these rooms every room that may import it."""
NOT_FOR_PUBLISH = OBSERVERS | {"sidecar", "commands", "demo", "config", "state", "registries"}


def module_of(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full name of everything a module imports, at any depth, relative ones made absolute."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__":
            yield "__import__"


def room_of(name: str) -> str | None:
    """Return the room a name of the package is in, None for a name of another package."""
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else "") if parts[0] == PACKAGE else None


def breaches(module: str, imported: Iterator[str]) -> list[str]:
    """Return a sentence for each import that ``module`` may not make."""
    own, found = room_of(module) or "", []
    for name in imported:
        room = room_of(name)
        if room is None:
            if own in PURE and name.split(".")[0] not in PURE_LIBRARY:
                found.append(f"{module} is pure and imports {name}")
            continue
        if own in BELOW and room not in BELOW[own]:
            found.append(f"{module} imports {name}, {own} may not import {room or 'the package itself'}")
        if room in ONLY_FOR and own not in ONLY_FOR[room]:
            found.append(f"{module} imports {name}, which only {', '.join(sorted(ONLY_FOR[room]))} may")
        if own == "publish" and room in NOT_FOR_PUBLISH:
            found.append(f"{module} imports {name}, publish renders Snapshots and nothing else")
    return found


SOURCES = sorted((ROOT / PACKAGE).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_what_its_room_may_not(path: Path) -> None:
    module = module_of(path)
    imported = imports_of(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    assert breaches(module, imported) == []


def test_every_room_that_has_a_rule_is_there() -> None:
    rooms = {room_of(module_of(path)) for path in SOURCES}
    assert rooms >= set(BELOW) | set(ONLY_FOR) | {"publish"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("budget_exporter.budget.laws.x", "import os"),
        ("budget_exporter.facts.x", "import pathlib"),
        ("budget_exporter.verdicts.x", "def f():\n    import time"),
        ("budget_exporter.units", "from yaml import safe_load"),
        ("budget_exporter.budget.x", "if False:\n    from socket import socket"),
        ("budget_exporter.budget.x", "os = __import__('os')"),
        ("budget_exporter.budget.x", "from importlib import import_module"),
        ("budget_exporter.budget.x", "from budget_exporter import devices"),
        ("budget_exporter.budget.x", "from budget_exporter.verdicts import judge"),
        ("budget_exporter.facts.x", "from budget_exporter.units import GIB"),
        ("budget_exporter.devices.x", "from budget_exporter.engines import procfs"),
        ("budget_exporter.engines.x", "from ..evidence import boot"),
        ("budget_exporter.evidence.x", "import budget_exporter.publish.metrics"),
        ("budget_exporter.engines.x", "from budget_exporter.config import Config"),
        ("budget_exporter.publish.x", "from budget_exporter.sidecar import Sidecar"),
        ("budget_exporter.publish.x", "from ..devices import DeviceSource"),
        ("budget_exporter.cli", "from budget_exporter import sidecar"),
        ("budget_exporter.config", "import budget_exporter.demo.host"),
        ("budget_exporter.sidecar.x", "from budget_exporter.commands import serve"),
    ],
)
def test_a_breach_would_be_found(module: str, source: str) -> None:
    assert breaches(module, imports_of(source, module, is_package=False))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("budget_exporter.budget.laws.x", "import math\nfrom collections.abc import Sequence"),
        ("budget_exporter.verdicts.x", "from budget_exporter.budget import graphs\nfrom . import drift"),
        ("budget_exporter.devices.x", "import os\nfrom budget_exporter.roots import Roots"),
        ("budget_exporter.commands.x", "from budget_exporter import sidecar, demo"),
        (
            "budget_exporter.sidecar.x",
            "from budget_exporter import budget, config, devices, engines, evidence, verdicts",
        ),
        ("budget_exporter.publish.x", "from budget_exporter.facts.snapshot import Snapshot"),
    ],
)
def test_what_is_allowed_is_no_breach(module: str, source: str) -> None:
    assert breaches(module, imports_of(source, module, is_package=False)) == []


def test_a_package_s_relative_import_is_read_from_itself() -> None:
    assert list(imports_of("from . import x", "budget_exporter.devices", is_package=True)) == [
        "budget_exporter.devices.x"
    ]
    assert list(imports_of("from .. import x", "budget_exporter.devices.y", is_package=False)) == ["budget_exporter.x"]


def test_the_pure_library_is_python_s_own() -> None:
    assert sys.stdlib_module_names >= PURE_LIBRARY
