"""Which shapes a Gaudi engine warms up and captures graphs of: pure, by release."""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.budget.buckets import fork, plugin
from budget_exporter.budget.buckets.defaults import decode_ranges, prompt_ranges, strategy
from budget_exporter.budget.buckets.releases import (
    Bucket,
    Limited,
    Linear,
    Padded,
    Release,
    Sizes,
    TooManyBuckets,
    flag,
    release_of,
)

__all__ = [
    "Bucket",
    "Buckets",
    "Limited",
    "Linear",
    "Padded",
    "Release",
    "Sizes",
    "decode",
    "prompt",
    "release_of",
    "warm_up_order",
]

LONG_PROMPT = 8192


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of one phase in the engine's order; ``found`` is None where they are unknown, ``why`` says why."""

    found: tuple[Bucket, ...] | None
    omitted: tuple[Bucket, ...] = ()
    over_budget: bool = False
    """True where every bucket is over the token budget, so that the engine ignores it."""
    why: str = ""


def prompt(release: Release, sizes: Sizes) -> Buckets:
    """
    Return the prompt buckets of a release.

    Not known for a bucket file, for the plugin before 0.11.2 and from 0.21 to before 0.24, and for exponential prompts
    of 8192 tokens and more in 1.22. Raise LawError for a size that is missing or a setting that is wrong, and where the
    engine would not start.
    """
    try:
        return _prompt(release, sizes)
    except TooManyBuckets as error:
        return Buckets(None, why=str(error))


def _prompt(release: Release, sizes: Sizes) -> Buckets:
    if reason := _unknown(release, sizes):
        return Buckets(None, why=reason)
    ranges = prompt_ranges(release, sizes)
    if not release.plugin:
        if release.fork_since(1, 22) and isinstance(ranges.second, Limited) and ranges.second.high >= LONG_PROMPT:
            return Buckets(None, why="how 1.22 spaces long prompts is not known")
        found, omitted, over = fork.prompt(release, ranges, sizes)
        return Buckets(tuple(found), tuple(omitted), over)
    rule = plugin.prompt_rule(release)
    if rule is None:
        return Buckets(None, why="how this release filters prompts is not known")
    return Buckets(tuple(plugin.prompt(release, ranges, sizes, rule)))


def decode(release: Release, sizes: Sizes) -> Buckets:
    """
    Return the decode buckets of a release.

    Not known for a bucket file, for the plugin before 0.11.2, and under its exponential strategy for releases between
    those whose rule was read (``plugin.decode_blocks``). Raise LawError as ``prompt`` does.
    """
    try:
        return _decode(release, sizes)
    except TooManyBuckets as error:
        return Buckets(None, why=str(error))


def _decode(release: Release, sizes: Sizes) -> Buckets:
    if reason := _unknown(release, sizes):
        return Buckets(None, why=reason)
    if not release.plugin:
        return Buckets(tuple(fork.decode(release, decode_ranges(release, sizes), sizes)))
    blocks = plugin.decode_blocks(release, sizes)
    if blocks is None and strategy(release, sizes.environ) == "exp":
        return Buckets(None, why="how large this release's decode buckets get is not known")
    return Buckets(tuple(plugin.decode(release, decode_ranges(release, sizes, blocks), sizes)))


def warm_up_order(found: tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    """Return the order in which the engine warms buckets up, and from 1.22 captures them: the last first."""
    return found[::-1]


def _unknown(release: Release, sizes: Sizes) -> str:
    if not flag(sizes.environ, "VLLM_ENABLE_BUCKETING", default=True):
        return "bucketing is switched off (VLLM_ENABLE_BUCKETING)"
    if release.plugin and not release.plugin_since(0, 11, 2):
        return "how the plugin cuts buckets before 0.11.2 is not known"
    if strategy(release, sizes.environ) == "file":
        return "the buckets come from a file (VLLM_BUCKETING_FROM_FILE)"
    return ""
