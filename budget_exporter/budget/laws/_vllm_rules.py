"""
What changed in vLLM's budget on CUDA and ROCm from release to release: one row for each change.

Source: vLLM 0.8.5 to 0.33 ``v1/worker/gpu_worker.py`` (``init_device``, ``determine_available_memory``,
``compile_or_warm_up_model``), ``v1/worker/utils.py`` (``request_memory``), ``utils/mem_utils.py``, ``envs.py``,
``config/cache.py`` for the default, and ``config/vllm.py`` (``use_v2_model_runner``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from budget_exporter.budget.checks import switch
from budget_exporter.budget.laws import Version
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape

__all__ = ["RULES", "V2_RUNNER", "Rule", "model_runner"]

V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_CUDA = frozenset({"nvidia"})
_CUDA_AND_ROCM = frozenset({"nvidia", "amd"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: what holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    changed: str
    """What is new with this row."""
    examined_until: Version | None = None
    profile: Literal["parts", "consumed"] = "parts"
    """Weights, activation and non-torch apart, or all that was consumed and a transient headroom."""
    round_up: bool = False
    """Whether the request is rounded up; before, whole bytes of a float."""
    checks_init: bool = True
    device_wide: bool = False
    """Whether everything the device carries, other tenants too, counts as the engine's own non-torch memory."""
    includes: str = ""
    """What else the snapshot at init makes a part of non-torch memory."""
    default_utilization: float = 0.9
    charges_graphs: bool | None = None
    """Whether the graph estimate is charged by default; None where there is no estimate."""
    estimates: frozenset[str] = frozenset()
    """Platforms on which graphs are estimated at all."""
    v2_estimates: bool = True
    """Whether the V2 model runner estimates graphs; through 0.28 it returns 0."""
    v2_models: tuple[str, ...] | None = ()
    """Architectures that get the V2 model runner by default; None where flags alone do not tell."""
    peak_holds_estimate: bool = False
    """Whether the engine prints the peak activation with a charged estimate in it: then only a charge that the log
    states tells the two apart, and the suggested KV sizes count the estimate and the capture."""
    suggests: bool = True
    """Whether a boot prints two sizes for ``--kv-cache-memory-bytes`` (since that flag)."""
    reserves_multimodal: bool = False
    startup_plan: bool = False
    """Whether ``VLLM_ENABLE_STARTUP_PLAN`` may put a remembered KV size in place of the profile."""


_FIRST = Rule(
    (0, 8, 5),
    (0, 9, 1),
    "V1: no check at init; non-torch memory is whatever the device carries, other tenants and the driver too",
    checks_init=False,
    device_wide=True,
    suggests=False,
)
_CHECKED = replace(
    _FIRST,
    since=(0, 9, 1),
    until=(0, 10, 2),
    changed="a check at init; only what was taken since a snapshot is charged, from before NCCL starts",
    checks_init=True,
    device_wide=False,
    includes="NCCL's buffers",
)
_EXPLICIT = replace(
    _CHECKED,
    since=(0, 10, 2),
    until=(0, 11),
    changed="--kv-cache-memory-bytes skips the profile, not the check; two sizes for it are suggested",
    suggests=True,
)
_AFTER_NCCL = replace(
    _EXPLICIT, since=(0, 11), until=(0, 14), changed="the snapshot is taken after NCCL has started", includes=""
)
_ROUNDED = replace(
    _AFTER_NCCL, since=(0, 14), until=(0, 18), changed="the request is rounded up to a whole byte", round_up=True
)
_ESTIMATED = replace(
    _ROUNDED,
    since=(0, 18),
    until=(0, 19),
    changed="graphs are estimated on CUDA and charged where the environment says so",
    charges_graphs=False,
    estimates=_CUDA,
    v2_estimates=False,
    peak_holds_estimate=True,
)
_PEAK_ALONE = replace(
    _ESTIMATED,
    since=(0, 19),
    until=(0, 20),
    changed="the printed peak activation no longer holds the estimate",
    peak_holds_estimate=False,
)
_CHARGED = replace(
    _PEAK_ALONE,
    since=(0, 20),
    until=(0, 22),
    changed="the estimate is charged by default; the default utilization is 0.92",
    charges_graphs=True,
    default_utilization=0.92,
)
_V2_QWEN3 = replace(
    _CHARGED,
    since=(0, 22),
    until=(0, 23),
    changed="Qwen3 models that are not quantized get the V2 model runner, which estimates no graphs",
    v2_models=("Qwen3ForCausalLM",),
)
_V2_DENSE = replace(
    _V2_QWEN3,
    since=(0, 23),
    until=(0, 24),
    changed="Llama and Mistral models get the V2 model runner too",
    v2_models=("Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"),
)
_V2_LISTED = replace(
    _V2_DENSE,
    since=(0, 24),
    until=(0, 25),
    changed="a longer list gets the V2 model runner, quantized and MoE models among it",
    v2_models=None,
)
_MULTIMODAL = replace(
    _V2_LISTED,
    since=(0, 25),
    until=(0, 26),
    changed="memory for the frontend's multimodal decoding is taken from what is available for KV",
    reserves_multimodal=True,
)
_ROCM = replace(
    _MULTIMODAL,
    since=(0, 26),
    until=(0, 27),
    changed="graphs are estimated on ROCm too; VLLM_ENABLE_STARTUP_PLAN",
    estimates=_CUDA_AND_ROCM,
    startup_plan=True,
)
_CONSUMED = replace(
    _ROCM,
    since=(0, 27),
    until=(0, 29),
    changed="charged are all that was consumed and a transient headroom; the printed peak holds the estimate again",
    profile="consumed",
    peak_holds_estimate=True,
)
_V2_ESTIMATES = replace(
    _CONSUMED,
    since=(0, 29),
    until=(0, 32),
    changed="the V2 model runner estimates graphs; on ROCm memory that grew while profiling is no error any more",
    v2_estimates=True,
)
_EXTERNAL = replace(
    _V2_ESTIMATES,
    since=(0, 32),
    until=(0, 33),
    changed="weights that another process holds are subtracted; the log does not tell how much that is",
)
_AFTER_CUBLAS = replace(
    _EXTERNAL,
    since=(0, 33),
    until=None,
    changed="the snapshot is taken after cuBLAS has made its handles",
    examined_until=(0, 34),
)
RULES = (
    _FIRST,
    _CHECKED,
    _EXPLICIT,
    _AFTER_NCCL,
    _ROUNDED,
    _ESTIMATED,
    _PEAK_ALONE,
    _CHARGED,
    _V2_QWEN3,
    _V2_DENSE,
    _V2_LISTED,
    _MULTIMODAL,
    _ROCM,
    _CONSUMED,
    _V2_ESTIMATES,
    _EXTERNAL,
    _AFTER_CUBLAS,
)
"""The rows, oldest first; each begins where the one before it ends."""


def model_runner(rule: Rule, shape: Shape, report: BootReport) -> str | None:
    """
    Return ``V1`` or ``V2``, None where nothing tells.

    The engine's own line counts, then VLLM_USE_V2_MODEL_RUNNER, then the architecture: a release that prefers V2 for
    some does so for models that are not quantized, and whether one is a flag tells only where it is given. Raise
    LawError for a value of the variable that is neither 0 nor 1.
    """
    if report.model_runner is not None:
        return report.model_runner
    asked = switch(shape.environ, V2_RUNNER)
    if asked is not None:
        return "V2" if asked else "V1"
    if rule.v2_models is None or (rule.v2_models and report.architecture is None):
        return None
    if report.architecture not in rule.v2_models or "quantization" in shape.given:
        return "V1"
    return None
