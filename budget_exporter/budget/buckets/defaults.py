"""
The ranges buckets are cut from: the release's defaults, and the settings that replace them.

The settings are VLLM_{PROMPT,DECODE}_{BS,SEQ,QUERY,CTX,BLOCK}_BUCKET_{MIN,STEP,MAX}; the padding-aware strategy has
_PAD_MAX and _PAD_PERCENT beside them. The exponential strategy reads none of them.

Source: ``_setup_buckets`` of HabanaAI/vllm-fork 1.17 and 1.18; vllm-hpu-extension as pinned by 1.19 to 1.22; vllm-gaudi
``extension/bucketing/{linear,exponential,padding_aware}.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.buckets.exponential import limit
from budget_exporter.budget.buckets.releases import Limited, Linear, Padded, Range, Release, Sizes, flag
from budget_exporter.errors import LawError

__all__ = ["Ranges", "Strategy", "contiguous", "decode_ranges", "prefill_seqs", "prompt_ranges", "strategy"]

Strategy = Literal["lin", "exp", "pad", "file"]
LONG = 8192
"""From this length of context on the plugin cuts the prompt's context differently."""
PROMPT_SEQ, DECODE_SEQ = 1024, 2048
"""Largest prompt and decode sequence to 1.20, whatever the model's length."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of one phase: the batch, the second dimension, and in the plugin's prompts the context in blocks."""

    batch: Range
    second: Range
    """Tokens of a prompt (or of its query); blocks of a decode, tokens to 1.17."""
    context: Range | None = None


def strategy(release: Release, environ: Mapping[str, str]) -> Strategy:
    """
    Return how a release cuts its buckets.

    Linear to 1.20. VLLM_EXPONENTIAL_BUCKETING from 1.21 on, off by default there and on from 1.22. The plugin from 0.20
    reads VLLM_BUCKETING_STRATEGY (``exp`` by default), which the older name overrides; VLLM_BUCKETING_FROM_FILE beats
    both. Raise LawError for another word.
    """
    if release.plugin and environ.get("VLLM_BUCKETING_FROM_FILE"):
        return "file"
    if not release.since((1, 21)):
        return "lin"
    chosen: Strategy = "exp" if release.since((1, 22)) else "lin"
    if release.plugin_since(0, 20):
        chosen = _named(environ.get("VLLM_BUCKETING_STRATEGY", chosen))
    if "VLLM_EXPONENTIAL_BUCKETING" not in environ:
        return chosen
    return "exp" if flag(environ, "VLLM_EXPONENTIAL_BUCKETING", default=True) else "lin"


def _named(text: str) -> Strategy:
    if text == "exp":
        return "exp"
    if text == "lin":
        return "lin"
    if text == "pad":
        return "pad"
    raise LawError(f"VLLM_BUCKETING_STRATEGY must be exp, lin or pad, not {text[:40]!r}")


def contiguous(release: Release, sizes: Sizes) -> bool:
    """
    Return whether paged attention is contiguous: VLLM_CONTIGUOUS_PA.

    On by default in the fork from 1.21; in the plugin only without prefix caching.
    """
    default = not sizes.prefix_caching if release.plugin else release.fork_since(1, 21)
    return flag(sizes.environ, "VLLM_CONTIGUOUS_PA", default=default)


def prefill_seqs(release: Release, sizes: Sizes) -> int:
    """Return the largest batch of prompts: the fork's flag or 64; the plugin's VLLM_PROMPT_BS_BUCKET_MAX or 1."""
    if release.plugin:
        return _setting(sizes.environ, "VLLM_PROMPT_BS_BUCKET_MAX", 1)
    return 64 if sizes.max_num_prefill_seqs is None else sizes.need("max_num_prefill_seqs")


def prompt_ranges(release: Release, sizes: Sizes) -> Ranges:
    """Return the ranges of the prompt phase; raise LawError for a size that is not known or a setting that is wrong."""
    kind = strategy(release, sizes.environ)
    if release.plugin:
        return _plugin_prompt(sizes, kind, prefill_seqs(release, sizes))
    block = sizes.need("block_size")
    if kind == "exp":
        most, longest = prefill_seqs(release, sizes), sizes.need("max_model_len")
        return Ranges(Limited(1, 2, most, limit(most)), Limited(block, block, longest, limit(longest)))
    if release.fork_since(1, 19):
        batch = Linear(1, 32, prefill_seqs(release, sizes))
    else:
        seqs = sizes.need("max_num_seqs")
        batch = Linear(1, min(seqs, 32) if release.fork_since(1, 18) else 32, min(seqs, 64))
    longest = sizes.need("max_model_len") if release.fork_since(1, 21) else PROMPT_SEQ
    return Ranges(_set(sizes, "PROMPT_BS", batch), _set(sizes, "PROMPT_SEQ", Linear(block, block, longest)))


def _plugin_prompt(sizes: Sizes, kind: Strategy, most: int) -> Ranges:
    block, batched = sizes.need("block_size"), sizes.need("max_num_batched_tokens")
    longest = sizes.need("max_model_len")
    if kind == "exp":
        shortest = 1 if _setting(sizes.environ, "VLLM_PROMPT_QUERY_BUCKET_MIN", block) == 1 else block
        context = max(1, (longest - (batched if longest >= LONG else shortest)) // block)
        return Ranges(
            Limited(1, 2, most, limit(most)),
            Limited(shortest, block, batched, limit(batched) - 1),
            Limited(0, 1, context, max(2, limit(context))),
        )
    if kind == "pad":
        query = _pad(sizes, "PROMPT_QUERY", Padded(block, block, batched, -(-batched // 4), 25), "PROMPT_SEQ")
        context = -(-(longest - query.low) // block)
        return Ranges(
            _pad(sizes, "PROMPT_BS", Padded(1, 1, most, -(-most // 4), 25)),
            query,
            _pad(sizes, "PROMPT_CTX", Padded(0, 2, context, -(-batched // block), 25)),
        )
    tokens = _set(sizes, "PROMPT_QUERY", Linear(block, block, batched), "PROMPT_SEQ")
    return Ranges(
        _set(sizes, "PROMPT_BS", Linear(1, 1, most)),
        tokens,
        _set(sizes, "PROMPT_CTX", Linear(0, 1, (longest - tokens.low) // block)),
    )


def decode_ranges(release: Release, sizes: Sizes, plugin_blocks: tuple[int, int] | None = None) -> Ranges:
    """
    Return the ranges of the decode phase.

    ``plugin_blocks`` is the exponential plugin's largest number of blocks and how many values lead up to it, which
    change with its releases (``plugin.decode_blocks``). Raise LawError for a size that is not known or a setting that
    is wrong.
    """
    kind = strategy(release, sizes.environ)
    seqs, block = sizes.need("max_num_seqs"), sizes.need("block_size")
    if release.plugin:
        return _plugin_decode(release, sizes, kind, plugin_blocks)
    if not release.fork_since(1, 18):
        second = _set(sizes, "DECODE_SEQ", Linear(block, block, DECODE_SEQ))
        return Ranges(_set(sizes, "DECODE_BS", Linear(1, 128, seqs)), second)
    if not release.fork_since(1, 19):
        batch, second = (
            Linear(min(seqs, 32), min(seqs, 32), seqs),
            Linear(128, 128, max(128, seqs * DECODE_SEQ // block)),
        )
        return Ranges(_set(sizes, "DECODE_BS", batch), _set(sizes, "DECODE_BLOCK", second))
    most = _most_blocks(release, sizes, seqs, block)
    if kind == "exp":
        blocks = Limited(block, block, sizes.need("num_blocks"), limit(most))
        return Ranges(Limited(1, 2, seqs, limit(seqs)), blocks)
    second = _set(sizes, "DECODE_BLOCK", Linear(block, block, most))
    return Ranges(_set(sizes, "DECODE_BS", Linear(1, 32, seqs)), second)


def _most_blocks(release: Release, sizes: Sizes, seqs: int, block: int) -> int:
    if release.fork_since(1, 22):
        return sizes.need("num_blocks")
    length = sizes.need("max_model_len") if release.fork_since(1, 21) else DECODE_SEQ
    return max(block, seqs * length // block)


def _plugin_decode(release: Release, sizes: Sizes, kind: Strategy, blocks: tuple[int, int] | None) -> Ranges:
    seqs, block, physical = sizes.need("max_num_seqs"), sizes.need("block_size"), sizes.need("num_blocks")
    if kind == "exp":
        if blocks is None:
            raise LawError(f"the largest decode bucket of {'.'.join(map(str, release.version))} is not known")
        return Ranges(Limited(1, 2, seqs, limit(seqs)), Limited(1, seqs, *blocks))
    near = contiguous(release, sizes)
    tokens = sizes.need("max_model_len") * seqs
    if kind == "lin":
        most = physical if near else max(tokens // block, block)
        second = _set(sizes, "DECODE_BLOCK", Linear(1, block, most))
        clamped = Linear(second.low, second.step, min(second.high, physical))
        return Ranges(_set(sizes, "DECODE_BS", Linear(1, 32, seqs)), clamped)
    most = physical if near else max(-(-tokens // block), block)
    padded = _pad(sizes, "DECODE_BLOCK", Padded(block, block, most, -(-most // 4), 25))
    low = max(1, physical - padded.step) if padded.low > physical else padded.low
    high = min(padded.high, physical) if near else padded.high
    batch = _pad(sizes, "DECODE_BS", Padded(1, 2, seqs, -(-seqs // 4), 25))
    return Ranges(batch, Padded(low, padded.step, high, padded.pad_max, padded.pad_percent))


def _set(sizes: Sizes, name: str, default: Linear, older: str | None = None) -> Linear:
    values = _parameters(sizes.environ, name, older, (default.low, default.step, default.high))
    return Linear(*values)


def _pad(sizes: Sizes, name: str, default: Padded, older: str | None = None) -> Padded:
    given = (default.low, default.step, default.high, default.pad_max, default.pad_percent)
    return Padded(*_parameters(sizes.environ, name, older, given))


def _parameters(environ: Mapping[str, str], name: str, older: str | None, default: tuple[int, ...]) -> list[int]:
    found = []
    for parameter, value in zip(("MIN", "STEP", "MAX", "PAD_MAX", "PAD_PERCENT"), default, strict=False):
        setting = f"VLLM_{name}_BUCKET_{parameter}"
        if setting not in environ and older is not None:
            setting = f"VLLM_{older}_BUCKET_{parameter}"
        found.append(_setting(environ, setting, value))
    return found


def _setting(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise LawError(f"{name} must be a whole number, not {text[:40]!r}") from None
    if value < 0:
        raise LawError(f"{name} must not be negative, not {value}")
    return value
