"""Which law, and which constants, an engine gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from budget_exporter.budget.laws import Law, Version, expert_offload, vllm_gpu
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, RegistryEntry

__all__ = ["LAWS", "Choice", "choose", "constants_for", "parse_version"]

LAWS: tuple[Law, ...] = (*vllm_gpu.LAWS, *expert_offload.LAWS)
_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Choice:
    """The law of an engine, for which version, and whether that had to be assumed."""

    law: Law
    version: str
    assumed: bool

    @property
    def name(self) -> str:
        """Return the law's name."""
        return self.law.name


def parse_version(text: str | None) -> Version | None:
    """Return the numbers a version begins with (``0.11.1rc2+rocm`` is 0.11.1), None where there are none."""
    match = _NUMBERS.match(text or "")
    return tuple(int(part) for part in match[1].split(".")) if match else None


def choose(shape: Shape, report: BootReport | None) -> Choice:
    """
    Return the law for the engine's flavour and version.

    The flavour is expert offload where the flag or a plan block says so. An unknown version, and one newer than anybody
    examined, takes the newest law, one older than all takes the oldest: each of them assumed.
    """
    flavour = "expert_offload" if _offloads(shape, report) else "vllm_gpu"
    laws = [law for law in LAWS if law.flavour == flavour]
    text = report.version if report is not None and report.version is not None else ""
    version = parse_version(text)
    if version is None:
        return Choice(laws[-1], text, assumed=True)
    for law in laws:
        if law.since <= version and (law.until is None or version < law.until):
            beyond = law.examined_until is not None and version >= law.examined_until
            return Choice(law, text, assumed=beyond)
    return Choice(laws[0], text, assumed=True)


def _offloads(shape: Shape, report: BootReport | None) -> bool:
    if shape.expert_offload or report is None:
        return shape.expert_offload
    return any(facts.plan is not None for facts in (report.common, *report.ranks.values()))


def constants_for(entries: Sequence[RegistryEntry], shape: Shape, report: BootReport | None) -> Constants | None:
    """
    Return the constants of the first entry that fits the engine, None where none does.

    An entry fits where one of its patterns matches a name the engine goes by (its own, the flag's, the served one; also
    the last part of a path), letter case aside; where its release patterns match the fork's release; and where tensor
    parallelism is the same. While the release is unknown only a pattern that takes every release fits.
    """
    names = _names(shape, report)
    release = report.release if report is not None and report.release is not None else ""
    for entry in entries:
        known = any(fnmatchcase(name, pattern.casefold()) for name in names for pattern in entry.models)
        fits = any(fnmatchcase(release, pattern) for pattern in entry.releases)
        if known and fits and entry.constants.tensor_parallel_size == shape.tensor_parallel_size:
            return entry.constants
    return None


def _names(shape: Shape, report: BootReport | None) -> list[str]:
    given = [report.model if report is not None else None, shape.model, shape.served_model_name]
    names = [name.casefold().rstrip("/") for name in given if name]
    return names + [name.rpartition("/")[2] for name in names]
