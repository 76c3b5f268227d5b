"""
Which layers share a block table: the engine cuts a model into groups of as many layers each, padded where they differ.

    group size = layers of the rarest kind of layer; of the commonest, where that is less than r times as many
                 (r: never before 0.12, 1.25 before 0.18, 1.5 from then on)
    groups     = ceil(layers / group size) of each kind

Source: vLLM 0.9.1 to 0.32 ``v1/core/kv_cache_utils.py`` (``get_kv_cache_groups``,
``_get_kv_cache_groups_uniform_page_size``, ``unify_kv_cache_spec_page_size``, ``unify_hybrid_kv_cache_specs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from budget_exporter.budget.kv_spec import Spec
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError

__all__ = ["Group", "Member", "group"]

WHOLE = ("full", "latent", "index")
"""Kinds that keep every token of a request."""


@dataclass(frozen=True, slots=True)
class Member:
    """One layer's cache, and the pipeline stage that holds it."""

    stage: int
    spec: Spec


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table; their pages differ only where the model has one group."""

    members: tuple[Member, ...]

    @property
    def spec(self) -> Spec:
        """Return the spec that stands for the group: all of its layers need as many blocks."""
        return self.members[0].spec

    def page(self, stage: int) -> int:
        """Return the bytes of one block of all the group's layers on ``stage``."""
        return sum(member.spec.page for member in self.members if member.stage == stage)


def group(members: Sequence[Member], version: Version, *, hybrid: bool = True) -> tuple[Group, ...]:
    """
    Return the groups of a model's layers, ``members`` in the model's order.

    ``hybrid`` is False where the hybrid KV cache manager is disabled: layers with a window then keep every token.
    Raise LawError for layers that ``version`` cannot serve together, or whose layout only the engine knows.
    """
    layers = tuple(members)
    if not hybrid or version < (0, 9, 1):
        layers = _promoted(layers)
    specs = {member.spec for member in layers}
    if len(specs) <= 1 or _alike(specs):
        if len(specs) > 1 and version < (0, 11):
            raise LawError("vLLM before 0.11 does not serve layers of different page sizes")
        return (Group(layers),) if layers else ()
    if not hybrid:
        raise LawError("the hybrid KV cache manager is disabled, but the layers have no kind in common")
    return _split(_same_pages(layers, version), version)


def _promoted(layers: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return layers with a window as whole ones where the model has whole ones too."""
    if not any(member.spec.kind in WHOLE for member in layers):
        return layers
    return tuple(
        replace(member, spec=replace(member.spec, kind="full", reach=0))
        if member.spec.kind in ("sliding", "chunked")
        else member
        for member in layers
    )


def _alike(specs: set[Spec]) -> bool:
    """Return whether all layers, of one block size so far, need as many token slots, though not pages of one size."""
    whole = all(spec.kind in WHOLE for spec in specs)
    return whole or len({(spec.kind, spec.reach) for spec in specs}) == 1


def _same_pages(layers: tuple[Member, ...], version: Version) -> tuple[Member, ...]:
    """Return the layers with pages of one size: smaller ones take more tokens a block, states are padded."""
    sizes = {member.spec.page for member in layers}
    if len(sizes) == 1:
        return layers
    if version < (0, 12):
        raise LawError("vLLM before 0.12 does not serve kinds of layers with different page sizes")
    if version >= (0, 29):
        raise LawError("layers of different page sizes: how they are packed depends on the KV cache layout")
    largest = max(sizes)
    return tuple(replace(member, spec=_scaled(member.spec, largest, version)) for member in layers)


def _scaled(spec: Spec, page: int, version: Version) -> Spec:
    if spec.kind == "state" and spec.page < page:
        if version < (0, 26):
            raise LawError("vLLM before 0.26 does not pad a recurrent state to a larger page")
        return replace(spec, page=page)
    if page % spec.page:
        raise LawError(f"a page of {spec.page} bytes does not divide one of {page}")
    return replace(spec, block_size=spec.block_size * (page // spec.page), page=page)


def _split(layers: tuple[Member, ...], version: Version) -> tuple[Group, ...]:
    kinds: dict[Spec, list[Member]] = {}
    for member in layers:
        kinds.setdefault(member.spec, []).append(member)
    size = _group_size([len(kind) for kind in kinds.values()], version)
    groups: list[Group] = []
    for kind in kinds.values():
        number = -(-len(kind) // size)
        if version < (0, 11):
            groups += [Group(tuple(kind[start : start + size])) for start in range(0, len(kind), size)]
        else:
            # Every number-th layer, so that a pipeline stage has its share of each group.
            groups += [Group(tuple(kind[start::number])) for start in range(number)]
    return tuple(groups)


def _group_size(counts: Sequence[int], version: Version) -> int:
    fewest, most = min(counts), max(counts)
    ratio = 0.0 if version < (0, 12) else 1.25 if version < (0, 18) else 1.5
    return most if most < fewest * ratio else fewest
