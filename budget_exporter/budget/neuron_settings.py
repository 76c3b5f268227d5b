"""
What the environment of an engine on AWS Neuron sets: its mode, the cap and the minimum of its KV pool, joined cores.

Source: vllm-neuron 0.24 ``envs.py`` and ``worker/neuron_worker.py``; AWS Neuron SDK 2.32 for the joined cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.checks import LARGEST_SIZE, number
from budget_exporter.budget.neuron_platforms import PLATFORMS
from budget_exporter.errors import LawError
from budget_exporter.facts.ledger import Origin
from budget_exporter.facts.neuron import NeuronFacts
from budget_exporter.units import GIB

__all__ = ["CAP", "COMPILE", "CPU", "LNC", "MINIMUM", "TARGET", "NeuronSettings", "described", "settings"]

Mode = Literal["device", "compile", "cpu"]
CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
MINIMUM = "VLLM_NEURON_MIN_KV_BUDGET_GIB"
COMPILE = "VLLM_NEURON_CPU_COMPILE"
CPU = "VLLM_NEURON_CPU_MODE"
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"
LNC = "NEURON_LOGICAL_NC_CONFIG"
OLD_LNC = "NEURON_RT_VIRTUAL_CORE_SIZE"
DEFAULT_CAP = 0.30
DEFAULT_MINIMUM = 1.0
DEFAULT_LNC = 2


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """The settings as the worker takes them, and who says so."""

    mode: Mode = "device"
    """On a device; only compiling, on a host without one; or running on the host's CPU."""
    target: str | None = None
    """The platform that is compiled for; only in mode ``compile``."""
    cap_fraction: float = DEFAULT_CAP
    cap_source: Origin = "default"
    minimum: int | None = int(DEFAULT_MINIMUM * GIB)
    """Bytes; None where the guard is off."""
    minimum_source: Origin = "default"
    lnc: int = DEFAULT_LNC
    """Physical cores of a logical one."""
    lnc_source: Origin = "default"


def settings(environ: Mapping[str, str]) -> NeuronSettings:
    """
    Return the settings of ``environ``.

    Raise LawError, naming the variable, where the worker raises: for what is no number, a fraction outside (0, 1], both
    CPU modes at once, or compiling without a known platform to compile for.
    """
    mode = _mode(environ)
    target = _target(environ) if mode == "compile" else None
    fraction = _number(environ, CAP)
    if fraction is not None and not 0 < fraction <= 1:
        raise LawError(f"{CAP} must be above 0 and at most 1, not {fraction:g}")
    gib = _number(environ, MINIMUM)
    number(MINIMUM, gib, most=LARGEST_SIZE / GIB)
    lnc, lnc_source = _lnc(environ)
    return NeuronSettings(
        mode=mode,
        target=target,
        cap_fraction=DEFAULT_CAP if fraction is None else fraction,
        cap_source="default" if fraction is None else "env",
        # The worker looks at the minimum only where it is above 0.
        minimum=int(DEFAULT_MINIMUM * GIB) if gib is None else int(gib * GIB) if gib > 0 else None,
        minimum_source="default" if gib is None else "env",
        lnc=lnc,
        lnc_source=lnc_source,
    )


def described(facts: NeuronFacts) -> list[str]:
    """Return a sentence for each thing that is said of the programs the engine compiles."""
    lists = [f"{name} {', '.join(map(str, sizes))}" for name, sizes in sorted(facts.buckets.items())]
    count = sum(len(sizes) for sizes in facts.buckets.values())
    found = [f"{count} buckets, each one more program in the device's memory: {'; '.join(lists)}"] if lists else []
    if facts.enable_bucketing is False:
        found.append("bucketing is off: one program for the whole length")
    if facts.pa_num_blocks is not None:
        found.append(f"pa_num_blocks {facts.pa_num_blocks}: the KV cache's blocks, one more is added for padding")
    if facts.pa_block_size is not None:
        found.append(f"pa_block_size {facts.pa_block_size}")
    named = {
        "quantization": facts.quantization,
        "framework": facts.framework,
        "backend": facts.backend,
        "compiled artifacts": facts.compiled_artifacts,
    }
    return [*found, *(f"{name}: {text}" for name, text in named.items() if text is not None)]


def _mode(environ: Mapping[str, str]) -> Mode:
    compiles, cpu = _switch(environ, COMPILE), _switch(environ, CPU)
    if compiles and cpu:
        raise LawError(f"{COMPILE} and {CPU} must not both be set")
    return "compile" if compiles else "cpu" if cpu else "device"


def _target(environ: Mapping[str, str]) -> str:
    target = environ.get(TARGET, "")
    if target not in PLATFORMS:
        raise LawError(f"{COMPILE} needs {TARGET} to be one of {', '.join(PLATFORMS)}, not {target[:40] or 'unset'}")
    return target


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name)
    if text is None:
        return False
    try:
        return int(text) != 0
    except ValueError as error:
        # An empty variable ends the engine too.
        raise LawError(f"{name} must be a whole number, not {text[:40]!r}") from error


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise LawError(f"{name} must be a number, not {text[:40]!r}") from error
    if not math.isfinite(value):
        raise LawError(f"{name} must be a finite number, not {text[:40]}")
    return value


def _lnc(environ: Mapping[str, str]) -> tuple[int, Origin]:
    name = LNC if LNC in environ else OLD_LNC
    text = environ.get(name)
    if text is None:
        return DEFAULT_LNC, "default"
    if text.strip() not in {"1", "2"}:
        raise LawError(f"{name} must be 1 or 2, not {text[:40]!r}")
    return int(text), "env"
