"""
How an engine lays out its KV cache: groups of layers, and the bytes of a block and of a token on each rank.

Source: vLLM 0.8.5 to 0.32 ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``; layers on pipeline stages by
``distributed/utils.py`` ``get_pp_indices``; what each module of this family names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from budget_exporter.budget.kv_dtype import kv_dtype, model_dtype
from budget_exporter.budget.kv_groups import Group, Member, group
from budget_exporter.budget.kv_settings import NO_LAYERS, Settings, settings as read_settings
from budget_exporter.budget.kv_spec import Spec, state_bytes, token_bytes
from budget_exporter.budget.kv_states import Mode, aligned_block, dtypes, mode
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.model import Attention, Cache, Index, Latent, Layer, ModelConfig, State

__all__ = ["KvGeometry", "geometry"]

BLOCK = 16
SPARSE_BLOCK = 64
CPU_BLOCK = 128


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """The layout of one engine's KV cache; ``stages`` are bytes of one block on a rank of each pipeline stage."""

    version: Version
    settings: Settings
    groups: tuple[Group, ...]
    stages: tuple[int, ...]
    in_flight: tuple[int, ...] = ()
    """Tokens scheduled but not settled that are possible; empty where the size of a batch is unknown."""
    mode: Mode = "none"
    state_kind: str = ""
    drafts: int = 0
    context_parallel: int = 1
    """Ranks that share out a request's tokens."""
    dtype: str = ""
    """KV cache type, resolved."""
    notes: tuple[str, ...] = ()
    """What had to be assumed, a sentence each."""

    @property
    def bytes_per_token(self) -> int:
        """
        Return the bytes a token takes on the rank that holds most, padding layers included, to the next whole byte.

        Recurrent states are left out: they follow the number of requests.
        """
        return max(self.token_bytes(stage) for stage in range(len(self.stages)))

    def token_bytes(self, stage: int) -> int:
        """Return the bytes a token takes on a rank of pipeline stage ``stage``, as ``bytes_per_token`` counts them."""
        keep = [each.spec.block_size for each in self.groups if each.spec.kind != "state"]
        return sum(-(-self.stages[stage] // size) for size in keep)


def geometry(
    config: ModelConfig,
    shape: Shape,
    version: Version,
    *,
    platform: str = "",
    draft: ModelConfig | None = None,
    batched_tokens: int | None = None,
) -> KvGeometry:
    """
    Return how the engine lays out the KV cache of ``config`` under ``shape``.

    ``platform`` is the device's (amd, nvidia, host, ...), ``draft`` the config of a draft model, ``batched_tokens``
    max_num_batched_tokens where the flags do not give it (layers with a window need it for the tokens they print).
    Raise LawError, naming the field, for what is not known: a KV cache type, a way to draft, layers that only the
    engine can lay out. Block sizes that an attention backend may force are assumed to be the default, with a note.
    """
    chosen = read_settings(shape, platform)
    _refuse(shape, config, chosen, version)
    stages = [*_stages(config.layers, chosen)]
    stages[-1] = (*stages[-1], *_draft_layers(config, chosen, draft))
    caches = [cache for stage in stages for layer in stage for cache in layer]
    dtype = kv_dtype(config, chosen, version)
    base, notes = _base_block(chosen, version, caches)
    states = [cache for cache in caches if isinstance(cache, State)]
    kept: Mode = "none"
    build = _Build(config, chosen, version, dtype, base)
    if states:
        if chosen.drafts is None:
            raise LawError("speculative_tokens: the recurrent state follows them, and they are not known")
        attends = any(isinstance(cache, Attention) for cache in caches)
        kept = mode(chosen, version, states[0].kind, attends=attends)
        build = build.with_states([cache for layer in config.layers for cache in layer], kept)
    groups = _groups(build, stages, version)
    context = _context_parallel(chosen, version, groups)
    return KvGeometry(
        version=version,
        settings=chosen,
        groups=groups,
        stages=tuple(max((each.page(stage) for each in groups), default=0) for stage in range(len(stages))),
        in_flight=_in_flight(chosen, version, batched_tokens),
        mode=kept,
        state_kind=states[0].kind if states else "",
        drafts=chosen.drafts or 0,
        context_parallel=context,
        dtype=dtype,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Build:
    """What turns a layer's cache into a spec."""

    config: ModelConfig
    settings: Settings
    version: Version
    dtype: str
    block: int
    padded: int = 0
    """Bytes a state is padded to; 0 where there is no attention beside it."""

    def with_states(self, caches: Sequence[Cache], kept: Mode) -> _Build:
        """Return the builder with attention's blocks large enough for the states, and states padded to them."""
        tokens = max((self._token(cache) for cache in caches if not isinstance(cache, State)), default=0)
        if not tokens:
            return self
        largest = max(self._state(cache) for cache in caches if isinstance(cache, State))
        chunk = self.config.chunk_size
        block = aligned_block(self.settings, self.version, kept, self.block, tokens, largest, chunk)
        return _Build(self.config, self.settings, self.version, self.dtype, block, block * tokens)

    def spec(self, cache: Cache) -> Spec:
        """Return the spec of one layer's cache."""
        if isinstance(cache, State):
            return Spec("state", self.block, max(self._state(cache), self.padded))
        page = self.block * self._token(cache)
        if isinstance(cache, Index):
            return Spec("index", self.block, page)
        if isinstance(cache, Latent):
            return Spec("latent", self.block, page)
        if cache.window is not None:
            return Spec("sliding", self.block, page, cache.window)
        if cache.chunk is not None:
            return Spec("chunked", self.block, page, cache.chunk)
        return Spec("full", self.block, page)

    def _token(self, cache: Attention | Latent | Index) -> int:
        return token_bytes(cache, self.dtype, self.settings.tensor, self.version)

    def _state(self, state: State) -> int:
        model = model_dtype(self.config, self.settings)
        inputs, own = dtypes(self.config, self.settings, self.version, state, model)
        return state_bytes(state, self.settings.tensor, inputs, own, self.settings.drafts or 0, self.version)


def _refuse(shape: Shape, config: ModelConfig, chosen: Settings, version: Version) -> None:
    """Raise LawError for what changes the layout in a way that is not known here."""
    if version < (0, 11) and shape.environ.get("VLLM_USE_V1") == "0":
        raise LawError("VLLM_USE_V1 0: the older engine's KV cache is not known")
    known = ("kv-transfer-config", "kv-events-config", "disable-sliding-window")
    strange = [name for name in chosen.layout_flags if name not in known]
    if strange:
        raise LawError(f"--{strange[0]}: it changes the KV cache, and its value is not kept")
    caches = [cache for layer in config.layers for cache in layer]
    windows = any(isinstance(cache, Attention) and cache.window is not None for cache in caches)
    if windows and "disable-sliding-window" in chosen.layout_flags:
        raise LawError("--disable-sliding-window: how it changes layers with a window is not known")
    if not chosen.latent and any(isinstance(cache, Latent) for cache in caches):
        raise LawError("VLLM_MLA_DISABLE 1: the KV cache without latent attention is not known")


def _groups(build: _Build, stages: Sequence[tuple[Layer, ...]], version: Version) -> tuple[Group, ...]:
    members = [
        Member(index, build.spec(cache)) for index, stage in enumerate(stages) for layer in stage for cache in layer
    ]
    hybrid = build.settings.hybrid
    if hybrid and any(member.spec.kind == "chunked" for member in members):
        hybrid = _chunked_apart(build.settings, version)
    groups = group(members, version, hybrid=hybrid)
    connected = [name for name in ("kv-transfer-config", "kv-events-config") if name in build.settings.layout_flags]
    if connected and hybrid and len(groups) > 1:
        raise LawError(f"--{connected[0]}: whether it disables the hybrid KV cache manager is not known")
    return groups


def _chunked_apart(chosen: Settings, version: Version) -> bool:
    """
    Return whether chunked layers have groups of their own.

    The environment decides from 0.10.1 on; its default was seen to allow it in 0.19. Raise LawError between the two.
    """
    if version < (0, 10, 1):
        return True
    if chosen.chunked_apart is None and version < (0, 19):
        raise LawError("chunked layers between 0.10.1 and 0.19: whether their cache is managed apart is not known")
    return chosen.chunked_apart is not False


def _stages(layers: tuple[Layer, ...], chosen: Settings) -> Iterator[tuple[Layer, ...]]:
    """
    Yield the layers of each pipeline stage.

    Layers that are left over go one each to the stages before the last, from its side. Raise LawError for fewer layers
    than stages, or a partition of other numbers. Source: vLLM 0.8.5 to 0.32 ``distributed/utils.py``
    ``get_pp_indices``.
    """
    pipeline, sizes = chosen.pipeline, chosen.partition
    if len(layers) < pipeline:
        raise LawError(f"pipeline_parallel_size {pipeline} is more than the {len(layers)} layers")
    if not sizes:
        each, left = divmod(len(layers), pipeline)
        sizes = tuple(each + (1 if pipeline - 1 - left <= stage < pipeline - 1 else 0) for stage in range(pipeline))
    if len(sizes) != pipeline or sum(sizes) != len(layers) or min(sizes) < 0:
        raise LawError(f"VLLM_PP_LAYER_PARTITION does not give {len(layers)} layers to {pipeline} stages")
    start = 0
    for size in sizes:
        yield layers[start : start + size]
        start += size


def _draft_layers(config: ModelConfig, chosen: Settings, draft: ModelConfig | None) -> tuple[Layer, ...]:
    """Return the layers that drafting adds on the last stage; raise LawError where that is not known."""
    if not chosen.speculative or chosen.method in NO_LAYERS:
        return ()
    if draft is not None:
        return draft.layers
    if chosen.method is None:
        raise LawError("speculative_method: not known, nor whether drafting keeps a KV cache")
    if not chosen.method.endswith("mtp"):
        raise LawError(f"speculative_method {chosen.method!r}: the draft model's config.json is not known")
    if not config.draft_layers:
        raise LawError(f"speculative_method {chosen.method!r}: config.json names no prediction layers")
    return config.draft_layers


def _base_block(chosen: Settings, version: Version, caches: Sequence[Cache]) -> tuple[int, tuple[str, ...]]:
    """
    Return the block size before states enlarge it, and a note where it is a default that a backend may override.

    16; 128 on CPU from 0.12, and there 16 for latent attention from 0.28; 64 for sparse attention.
    Source: vLLM 0.12 to 0.32 ``platforms/cpu.py``, ``config/cache.py``, ``platforms/interface.py``.
    """
    latent = any(isinstance(cache, Latent) for cache in caches)
    on_cpu = chosen.platform == "host"
    if on_cpu and latent and version >= (0, 28):
        return BLOCK, ()
    if chosen.block_size is not None:
        return chosen.block_size, ()
    if on_cpu and version >= (0, 12):
        return CPU_BLOCK, ()
    block = SPARSE_BLOCK if any(isinstance(cache, Index) for cache in caches) else BLOCK
    return block, (f"block size {block} is assumed, the default: an attention backend may force another",)


def _context_parallel(chosen: Settings, version: Version, groups: Sequence[Group]) -> int:
    """
    Return the ranks that share out a request's tokens: decode context parallel from 0.10.2, prefill 0.12 to 0.25.

    Raise LawError where a layer cannot be shared out.
    """
    ranks = chosen.decode_context if version >= (0, 10, 2) else 1
    if (0, 12) <= version < (0, 26):
        ranks *= chosen.prefill_context
    local = any(each.spec.kind in ("sliding", "chunked") for each in groups)
    if ranks > 1 and local:
        raise LawError("decode_context_parallel_size: not for layers with a window")
    return ranks


def _in_flight(chosen: Settings, version: Version, batched: int | None) -> tuple[int, ...]:
    """
    Return the tokens that can be scheduled and not yet settled: a batch, from 0.26 one for each concurrent step.

    Two steps with asynchronous scheduling, which is the default where nothing drafts and never on CPU; one a pipeline
    stage otherwise, and one more with the V2 model runner. Source: vLLM 0.26 to 0.32 ``config/vllm.py``
    ``max_concurrent_batches``.
    """
    batch = chosen.batched_tokens or batched
    if batch is None:
        return ()
    if version < (0, 26):
        return (batch,)
    stages = chosen.pipeline
    if chosen.asynchronous is False or chosen.platform == "host":
        return (stages * batch,)
    if stages == 1 and (chosen.asynchronous or not chosen.speculative):
        return (2 * batch,)
    return (stages * batch, (stages + 1) * batch)
