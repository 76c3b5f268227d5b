"""
Where a traceback passed: functions of vLLM whose frame, or whose call, tells the phase.

A phase that a frame tells is surer than the one the lines before it told: processes die while others go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from budget_exporter.evidence.statements import Mark, Pattern, Statement
from budget_exporter.facts.boot import Phase

__all__ = ["FRAMES", "PATTERNS", "RUNNING", "STAGES"]

STAGES: Mapping[str, Phase] = {
    "load_model": "loading",
    "load_weights": "loading",
    "initialize_model": "loading",
    "_initialize_model": "loading",
    "process_weights_after_loading": "loading",
    "determine_available_memory": "profiling",
    "determine_num_available_blocks": "profiling",
    "profile_run": "profiling",
    "capture_end": "capturing",
    "deep_gemm_warmup": "warming_up",
    "initialize_cache": "allocating_kv",
    "initialize_from_config": "allocating_kv",
    "initialize_kv_cache": "allocating_kv",
    "compile_or_warm_up_model": "warming_up",
    "_warm_up_model": "warming_up",
    "warmup_model": "warming_up",
}
"""
Functions of vLLM (0.5 to 0.33) that do all there is to do in a phase, whatever may fail in it.

Where an allocation failed they tell the phase; where nothing tells what failed they tell no cause.
"""
FRAMES: Mapping[str, Phase] = {
    "request_memory": "starting",
    "create_weights": "loading",
    "make_layers": "loading",
    "maybe_offload_to_cpu": "loading",
    "parallel_to_nc": "loading",
    "_profile_multimodal": "profiling",
    "profile_cudagraph_memory": "capturing",
    "capture_model": "capturing",
    "_capture_cudagraphs": "capturing",
    "_check_enough_kv_cache_memory": "unknown",
    "check_enough_kv_cache_memory": "unknown",
    "raise_if_cache_size_invalid": "unknown",
    "initialize_kv_cache_tensors": "allocating_kv",
    "_allocate_kv_cache": "allocating_kv",
    "_allocate_kv_cache_tensors": "allocating_kv",
    "allocate_gpu_cache": "allocating_kv",
    "_init_cache_engine": "allocating_kv",
    "_dummy_sampler_run": "warming_up",
    "_dummy_pooler_run": "warming_up",
    "kernel_warmup": "warming_up",
    "wake_up": "sleeping",
}
"""
Functions of vLLM (0.5 to 0.33), and of transformers-neuronx, of which little else comes than memory that is not there.

Their frame in a traceback tells the phase; the innermost one known counts.
Functions that serve several phases (``_dummy_run``, ``forward``) are not here. The checks of the KV cache are: what
they raise is no allocation that failed, so that no cause may follow from the frames around them.
"""
RUNNING = ("run_busy_loop", "run_engine_loop", "engine_step", "execute_model", "sample_tokens")
_CALLED = (
    "determine_available_memory",
    "profile_run",
    "capture_model",
    "initialize_kv_cache",
    "compile_or_warm_up_model",
)
_LINES: tuple[tuple[str, str, Phase], ...] = (
    # What a capture is made of: ``torch.cuda.graph`` and the end of it, where every ill of a capture comes out.
    (r"capture_end\(\)|graph_runner\.capture\(", "stage", "capturing"),
    (r"torch\.cuda\.graph\(", "stage", "capturing"),
    # The pool itself: V1 zeroes it tensor by tensor, V0 layer by layer.
    (r"torch\.zeros\(kv_cache|torch\.empty\(kv_cache", "frame", "allocating_kv"),
)
_WEAK: tuple[tuple[str, Phase], ...] = (
    # The sampler sorts the logits of the largest batch first when it is warmed up.
    (r"logits\.sort\(", "warming_up"),
    # Attention of a vision tower runs its largest input first in the profile run, before any text.
    (r", in vit_\w", "profiling"),
)
"""Lines of code that run in several phases, by the phase that asks most of them: for want of anything better."""


def _frame(match: re.Match[str]) -> Iterable[Statement]:
    name = match["name"]
    if name in FRAMES:
        yield Mark("frame", FRAMES[name])
    elif name in STAGES:
        yield Mark("stage", STAGES[name])
    elif name in RUNNING:
        yield Mark("running", "serving")


def _line(lead: str, name: str, phase: Phase) -> Pattern:
    body = rf"(?:, line (?P<frame_line>[0-9]{{1,7}}))?(?:{lead})"
    return Pattern(lead, re.compile(body), lambda _: (Mark(name, phase),), budget=False)


PATTERNS = (
    Pattern(
        rf", in (?:{'|'.join((*FRAMES, *STAGES, *RUNNING))})(?!\w)",
        re.compile(r"(?:, line (?P<frame_line>[0-9]{1,7}))?, in (?P<name>\w{1,80})\s*\n"),
        _frame,
        budget=False,
    ),
    Pattern(
        "|".join(rf"{name}\(" for name in _CALLED),
        # A line of code as tracebacks show it, not a sentence that names the function.
        re.compile(rf"^\s*(?:[\w., ]{{1,80}} = |return |await )?(?:await )?(?:\w+\.)+(?P<name>{'|'.join(_CALLED)})\("),
        _frame,
        budget=False,
    ),
    *(_line(*line) for line in _LINES),
    Pattern(
        r"torch\.empty\(|torch\.zeros\(|torch\.full\(|empty_strided_cuda\(",
        re.compile(
            r"^\s*(?:[\w.]{1,80} ?= ?|return )[\w.(= ]{0,80}?(?:torch\.(?:empty|zeros|full)|empty_strided_cuda)\("
        ),
        lambda _: (Mark("allocates"),),
        budget=False,
    ),
    Pattern(
        ", in __init__",
        # Where a model is built, layer by layer: each takes the memory for its weights.
        re.compile(r"/model_executor/models/\w{1,80}\.py\", line (?P<frame_line>[0-9]{1,7}), in __init__\s*\n"),
        lambda _: (Mark("frame", "loading"),),
        budget=False,
    ),
    *(_line(lead, "hint", phase) for lead, phase in _WEAK),
)
