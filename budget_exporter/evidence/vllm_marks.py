"""Lines of vLLM, 0.4 to 0.33, that tell where the engine is and no figure: steps of a boot, and signs of life."""

from __future__ import annotations

import re

from budget_exporter.evidence.statements import Mark, Pattern

__all__ = ["PATTERNS"]


def _mark(lead: str, name: str, phase: str | None = None) -> Pattern:
    life = name in ("alive", "asked", "batch", "completed")
    return Pattern(lead, re.compile(lead), lambda _: (Mark(name, phase),), budget=False, life=life)  # type: ignore[arg-type]


PATTERNS = (
    _mark(r"Starting to load model", "loading", "loading"),
    _mark("Loading safetensors checkpoint shards|Loading pt checkpoint shards", "loading", "loading"),
    _mark(
        r"Capturing CUDA graphs?[ (:]|Capturing CUDA graph shapes:|Capturing HIP graphs?[ (:]", "capturing", "capturing"
    ),
    _mark(
        "Capturing the model for CUDA graphs|Capturing cudagraphs for decoding|Capturing model for speculator",
        "capturing",
        "capturing",
    ),
    _mark(r"init engine \(profile, create kv cache, warmup model\)", "initialised", "warming_up"),
    # What the front end prints once the engine core is up: between the two nothing is allocated for the engine.
    _mark(r"Available routes are:|Waiting for application startup", "initialised"),
    _mark(r"Application startup complete", "serving", "serving"),
    _mark(r"Uvicorn running on", "serving", "serving"),
    _mark(r"Sleep mode freed|to fall asleep", "asleep", "sleeping"),
    _mark(r"to wake up", "awake", "serving"),
    _mark(r"API server: shutdown triggered|EngineCore: trigger received signal", "stopping"),
    _mark(r"Shutting down(?:$| FastAPI)", "stopping"),
    _mark(r"POST /\S{0,200} HTTP/1\.\d\\?\"? 200", "completed", "serving"),
    _mark(r"Avg generation throughput: (?:[1-9]|0\.\d{0,6}[1-9]).{0,80}Running: 0 reqs", "completed", "serving"),
    _mark(r"Avg prompt throughput: ", "alive", "serving"),
    _mark(r"Received request |Added request ", "asked", "serving"),
    _mark(r"Processed prompts: +0%", "batch", "serving"),
    _mark(r"Processed prompts: +[1-9]\d*%", "completed", "serving"),
)
