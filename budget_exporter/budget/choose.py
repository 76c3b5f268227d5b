"""Which law, and which constants, an engine gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from budget_exporter.budget.buckets.releases import FIRST_FORK, Release, release_of
from budget_exporter.budget.laws import Law, Version, expert_offload, gaudi, neuron, tpu, vllm_cpu, vllm_gpu
from budget_exporter.budget.neuron_settings import CPU as NEURON_CPU
from budget_exporter.budget.version import parse_version, version_text
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, RankInput, RegistryEntry

__all__ = ["LAWS", "Choice", "choose", "constants_for", "flavour_of", "parse_version"]

LAWS: tuple[Law, ...] = (
    *vllm_gpu.LAWS,
    *vllm_cpu.LAWS,
    *expert_offload.LAWS,
    *neuron.LAWS,
    *gaudi.LAWS,
    *tpu.LAWS,
)
"""All laws, those of a flavour together and oldest first."""
_DEVICE_TYPES = {"cuda": "vllm_gpu", "cpu": "vllm_cpu", "hpu": "gaudi", "neuron": "neuron", "tpu": "tpu"}
"""Flavour by what the engine says it runs on (``device_config``); ROCm is ``cuda`` too."""
_PLATFORMS = {
    "amd": "vllm_gpu",
    "nvidia": "vllm_gpu",
    "host": "vllm_cpu",
    "gaudi": "gaudi",
    "neuron": "neuron",
    "tpu": "tpu",
}
"""Flavour by the platform of the devices."""
_FIRST_PLUGIN = (0, 10)
_OLDER: Version = (0,)
"""Older than any release of the fork."""
_FORKS: tuple[tuple[Version, Version], ...] = (
    ((0, 4), (1, 16)),
    ((0, 5), (1, 17)),
    ((0, 6), (1, 19)),
    ((0, 6, 6), (1, 20)),
    ((0, 7), (1, 21)),
    ((0, 9), (1, 22)),
)
"""The vLLM that a release of Gaudi's fork stands on. Source: the tags of HabanaAI/vllm-fork."""


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


def choose(shape: Shape, report: BootReport | None, ranks: Sequence[RankInput] = ()) -> Choice:
    """
    Return the law for the engine's flavour and version; ``ranks`` tell the platform where the log does not.

    An unknown version, and one newer than anybody examined, takes the newest law, one older than all takes the oldest:
    each of them assumed. Raise LawError for an engine on a device that no law is for, and for ranks on devices of more
    than one kind.
    """
    flavour = flavour_of(shape, report, ranks)
    text, version, inferred = _version(flavour, shape, report)
    laws = [law for law in LAWS if law.flavour == flavour]
    if version is None:
        return Choice(laws[-1], text, assumed=True)
    for law in laws:
        if law.since <= version and (law.until is None or version < law.until):
            beyond = law.examined_until is not None and version >= law.examined_until
            return Choice(law, text, assumed=beyond or inferred)
    return Choice(laws[0], text, assumed=True)


def flavour_of(shape: Shape, report: BootReport | None, ranks: Sequence[RankInput] = ()) -> str:
    """
    Return the kind of engine.

    Expert offload is what the flag or a plan block says. Else what the engine says it runs on, in torch's words; else
    the platform of its devices; else a GPU. On Gaudi the release tells the fork from the plugin, and Neuron's CPU mode
    keeps to Neuron's law on the host's memory.
    """
    if _offloads(shape, report):
        return "expert_offload"
    kinds = sorted({_PLATFORMS[rank.platform] for rank in ranks if rank.platform in _PLATFORMS})
    said = report.device_type if report is not None else None
    if said is not None and said not in _DEVICE_TYPES:
        raise LawError(f"there is no budget law for an engine that runs on {said[:40]}")
    if kinds == ["vllm_cpu"] and said in (None, "neuron") and _on(shape.environ.get(NEURON_CPU, "")):
        return "neuron"
    wanted = kinds if said is None else sorted({_DEVICE_TYPES[said], *kinds})
    if len(wanted) > 1:
        where = "" if said is None else f"the engine runs on {said}, "
        raise LawError(f"{where}its ranks are on devices for which these laws hold: {', '.join(kinds)}")
    flavour = wanted[0] if wanted else "vllm_gpu"
    release = _gaudi(report) if flavour == "gaudi" else None
    return flavour if release is None else release.flavour


def _on(switch: str) -> bool:
    return switch.strip().lower() in ("1", "true")


def _version(flavour: str, shape: Shape, report: BootReport | None) -> tuple[str, Version | None, bool]:
    """
    Return the version as it is printed, its numbers, and whether they had to be inferred.

    Gaudi's fork counts by the release of its software, which its own version names; where only the version of the vLLM
    it stands on is known, that gives the release.
    """
    text = version_text(shape, report)
    if flavour not in {"gaudi", "gaudi_plugin"}:
        return text, parse_version(text), False
    release = _gaudi(report)
    if release is None:
        return text, None, False
    bases = [fork for base, fork in _FORKS if release.version >= base]
    if flavour == "gaudi" and release.version < FIRST_FORK:
        return text, bases[-1] if bases else _OLDER, True
    return text, release.version, False


def _gaudi(report: BootReport | None) -> Release | None:
    """Return the release of a Gaudi engine; a vLLM older than the plugin is the one a fork stands on."""
    if report is None:
        return None
    found = (release_of(text) for text in (report.release, report.version) if text is not None)
    release = next((each for each in found if each is not None), None)
    if release is not None and release.plugin and release.version < _FIRST_PLUGIN:
        return Release("gaudi", release.version)
    return release


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
