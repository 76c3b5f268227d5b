"""Facts an engine prints in parts: what is said of a rank in several figures, put together as RankFacts have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from budget_exporter.facts.boot import GraphProfile, Printed

__all__ = ["derived"]

_Value = Printed | int | float | GraphProfile


def derived(facts: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return what follows from the figures a rank printed (by name) and is not among them."""
    return {name: value for name, value in _parts(facts) if value is not None and name not in facts}


def _parts(facts: Mapping[str, _Value]) -> Iterator[tuple[str, _Value | None]]:
    yield "size_at_init", _sum(facts, "hbm_used", "free_at_init")
    yield "graph_capture", _captured(facts)


def _captured(facts: Mapping[str, _Value]) -> _Value | None:
    """
    Return what Gaudi's graphs took: those of prompts and of decoding, and of images where there are any.

    A model that only embeds has none for decoding: then the end of the warm-up must have been told.
    """
    if "decode_capture" not in facts and "warm_up" not in facts:
        return None
    kinds = ("prompt_capture", "decode_capture", "multimodal_capture")
    return _sum(facts, *(kind for kind in kinds if kind in facts)) if "prompt_capture" in facts else None


def _sum(facts: Mapping[str, _Value], *names: str) -> Printed | None:
    parts = [facts.get(name) for name in names]
    sizes = [part for part in parts if isinstance(part, Printed)]
    if len(sizes) < len(parts):
        return None
    return Printed(sum(size.bytes for size in sizes), sum(size.rounding for size in sizes))
