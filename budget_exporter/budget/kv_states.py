"""
How a model that mixes attention with recurrent states shares its blocks: block size, page, and blocks of a request.

A block must hold a page of attention or one state, so attention's blocks grow until their page is as large as the
state, and the state is padded to it.

Source: vLLM 0.10.2 to 0.19 ``models/config.py`` (``MambaModelConfig``, ``HybridAttentionMambaModelConfig``), 0.20 to
0.32 ``platforms/interface.py`` ``_align_hybrid_block_size``, and ``MambaSpec`` of ``v1/kv_cache_interface.py``.
"""

from __future__ import annotations

import math
from typing import Literal

from budget_exporter.budget.kv_settings import Settings
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.model import ModelConfig, State

__all__ = ["Mode", "aligned_block", "block_of_state", "dtypes", "mode", "request_blocks"]

Mode = Literal["none", "align", "all"]
ALIGNMENT = 16
"""Tokens that attention kernels step in; a backend with larger steps shows in the block size the engine prints."""
CHUNKED = ("mamba1", "mamba2")
"""Kinds of state the engine could cache at every block (mode ``all``, up to 0.31)."""


def mode(settings: Settings, version: Version, kind: str, *, attends: bool) -> Mode:
    """
    Return how states are kept for prefix caching: not at all, at block boundaries, or at every block.

    Prefix caching is on by default for models that mix in attention from 0.26 on. Raise LawError for ``all`` from 0.32
    on, which has it no more.
    """
    caching = settings.prefix_caching
    if caching is None:
        caching = attends and version >= (0, 26)
    if not caching or version < (0, 11, 1):
        return "none"
    if version < (0, 15):
        return "all" if kind in CHUNKED else "none"
    wanted = settings.state_mode
    if wanted == "all" and version >= (0, 32):
        raise LawError("--mamba-cache-mode all is not known to vLLM 0.32 and later")
    if wanted in (None, "none"):
        wanted = "all" if version < (0, 28) else "align"
    return "all" if wanted == "all" and kind in CHUNKED else "align"


def aligned_block(
    settings: Settings, version: Version, kept: Mode, base: int, token: int, state: int, chunk: int | None
) -> int:
    """
    Return attention's block size in tokens: the smallest aligned one whose page is at least ``state`` bytes.

    ``base`` is the block size flag or default, ``token`` the bytes of a token in one layer, ``chunk`` the Mamba
    kernel's chunk, which blocks are a multiple of where states are kept at every block.
    """
    alignment = max(ALIGNMENT, base) if version >= (0, 20) else ALIGNMENT
    if settings.platform == "host" and version < (0, 20):
        raise LawError("block size of a model with recurrent states on CPU before 0.20 is not known")
    needed = -(-state // token)
    if kept == "all":
        step = settings.state_block_size or chunk
        if step is None:
            raise LawError("config.json: chunk_size is missing, and states are kept at every block")
        alignment = math.lcm(step, alignment)
    return max(base, alignment * -(-needed // alignment))


def block_of_state(settings: Settings, kept: Mode, block: int, length: int) -> int:
    """Return the tokens a state stands for: attention's block where states are cached, else the whole of a request."""
    return (settings.state_block_size or length) if kept == "none" else block


def request_blocks(version: Version, kept: Mode, kind: str, drafts: int, block: int, length: int) -> int:
    """
    Return the blocks one request of ``length`` tokens holds of one group of states.

    1 up to 0.11.0; one for each ``block`` tokens up to 0.14; then 1 (none), 2 (align; 3 for Mamba 2 from 0.32) or one
    a block (all), and one for each of ``drafts``, which ``all`` counts from 0.22 on.
    """
    if version < (0, 11, 1):
        return 1
    if version < (0, 15):
        return -(-length // block)
    if kept == "all":
        return -(-length // block) + (drafts if version >= (0, 22) else 0)
    if kept == "align":
        return 2 + drafts + (1 if kind == "mamba2" and version >= (0, 32) else 0)
    return 1 + drafts


def dtypes(config: ModelConfig, settings: Settings, version: Version, state: State, model: str) -> tuple[str, str]:
    """
    Return the types of the convolution's inputs and of the state itself.

    The flags win; ``auto`` is ``model``'s type for the inputs and the inputs' type for the state, except: Nemotron-H
    takes the file's from 0.13 (float16 where it states none, float32 from 0.20), Qwen3.5 the file's from 0.17, and a
    CPU float32 from 0.29. Source: vLLM 0.13 to 0.32 ``models/config.py``, 0.29 to 0.32 ``platforms/cpu.py``.
    """
    inputs = settings.conv_dtype or model
    if state.kind == "short_conv":
        return inputs, inputs
    own = settings.state_dtype
    if own is None and config.model_type == "nemotron_h" and version >= (0, 13):
        own = config.state_dtype or ("float32" if version >= (0, 20) else "float16")
    elif own is None and config.model_type.startswith("qwen3_5") and version >= (0, 17):
        own = config.state_dtype
    if settings.platform == "host" and version >= (0, 29):
        own = "float32"
    return inputs, own or inputs
