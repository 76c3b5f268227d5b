"""What a Gaudi engine's bucket rules depend on: its release, its sizes, and the ranges its settings give."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from budget_exporter.errors import LawError

__all__ = [
    "Bucket",
    "Limited",
    "Linear",
    "Padded",
    "Range",
    "Release",
    "Sizes",
    "TooManyBuckets",
    "countable",
    "flag",
    "release_of",
]

Bucket = tuple[int, ...]
"""(batch, sequence) to 1.17, (batch, sequence or blocks) to 1.21, (batch, query, blocks) from 1.22."""
FIRST_FORK = (1, 16)
"""Gaudi's own numbers begin here, far above vLLM's."""
MOST_BUCKETS = 200_000
"""More than any engine has time to warm up: beyond it they are not counted."""
_FORK = re.compile(r"[Gg]audi-v?(\d+(?:\.\d+)*)")
_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)")
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


class TooManyBuckets(LawError):  # noqa: N818 - reads as what happened
    """The settings give more buckets than are worth counting; the engine itself may still try."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of one of the two Gaudi engines: HabanaAI's fork (1.16 to 1.22), or the vllm-gaudi plugin (0.10 on)."""

    flavour: Literal["gaudi", "gaudi_plugin"]
    version: tuple[int, ...]

    @property
    def plugin(self) -> bool:
        """Return whether it is the plugin."""
        return self.flavour == "gaudi_plugin"

    def fork_since(self, *version: int) -> bool:
        """Return whether it is the fork at ``version`` or later."""
        return not self.plugin and self.version >= version

    def plugin_since(self, *version: int) -> bool:
        """Return whether it is the plugin at ``version`` or later."""
        return self.plugin and self.version >= version

    def since(self, fork: tuple[int, ...]) -> bool:
        """Return whether it is the fork at ``fork`` or later, or any plugin, which continues the fork."""
        return self.plugin or self.version >= fork


def release_of(version: str) -> Release | None:
    """
    Return the release a version text names, None where it names none.

    ``0.6.6.post1+Gaudi-1.20.0`` and ``1.20.0`` are 1.20.0 of the fork, ``v0.19.1.post1`` the plugin's 0.19.1, whose
    numbers are those of the vLLM it goes with. Source: the tags of HabanaAI/vllm-fork and vllm-project/vllm-gaudi.
    """
    fork = _FORK.search(version)
    numbers = fork or _NUMBERS.match(version)
    if numbers is None:
        return None
    parts = tuple(int(part) for part in numbers[1].split("."))
    return Release("gaudi" if fork or parts >= FIRST_FORK else "gaudi_plugin", parts)


@dataclass(frozen=True, slots=True)
class Linear:
    """A range of the linear strategy: doubled from ``low`` until ``step``, then by ``step`` to ``high``."""

    low: int
    step: int
    high: int


@dataclass(frozen=True, slots=True)
class Limited:
    """A range of the exponential strategy: ``limit`` values from ``low`` to ``high``, rounded up to ``step``."""

    low: int
    step: int
    high: int
    limit: int


@dataclass(frozen=True, slots=True)
class Padded:
    """A range of the padding-aware strategy: linear, thinned out while padding stays below both limits."""

    low: int
    step: int
    high: int
    pad_max: int
    """Most padding in units of the range; 0 stands for ``high``."""
    pad_percent: int
    """Most padding of a value in percent of the next, 0 to 50."""


Range = Linear | Limited | Padded


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the buckets are cut for; None where it is not known, and then so are the buckets that need it."""

    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_prefill_seqs: int | None = None
    """The fork's flag, 64 by default; the plugin takes VLLM_PROMPT_BS_BUCKET_MAX, else 1."""
    num_blocks: int | None = None
    """KV blocks the engine may use."""
    block_size: int = 128
    prefix_caching: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    def need(self, name: str) -> int:
        """Return a size that must be known; raise LawError, naming it, where it is unknown or below 1."""
        value: int | None = getattr(self, name)
        if value is None:
            raise LawError(f"{name} is not known, and the buckets depend on it")
        if value < 1:
            raise LawError(f"{name} must be at least 1, not {value}")
        return value


def flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a switch of the environment; raise LawError, naming it, for a value that is neither on nor off."""
    text = environ.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise LawError(f"{name} must be true or false, not {text[:40]!r}")
    return word in _TRUE


def countable(*dimensions: int) -> None:
    """Raise TooManyBuckets where the product of ``dimensions``, each a number of values, is beyond any warm-up."""
    if math.prod(dimensions) > MOST_BUCKETS:
        raise TooManyBuckets(f"the settings give {' x '.join(map(str, dimensions))} buckets, more than {MOST_BUCKETS}")
