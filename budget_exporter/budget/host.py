"""
Host memory an engine pins beside its devices, from its flags: the KV offload buffer and the swap space.

Source: vLLM 0.11.1 to 0.33 ``config/vllm.py`` (``_post_init_kv_transfer_config``) for ``--kv-offloading-size``; vLLM
0.8.5 to 0.10.2 ``worker/cache_engine.py`` for the V0 engine's swap space, and issue 27984 and pull request 36216 of
vllm-project/vllm for V1, which never allocated any and dropped the flag with 0.18.
"""

from __future__ import annotations

from budget_exporter.budget.checks import flag_gib, number
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Term
from budget_exporter.units import GIB, gib_text

__all__ = ["DEFAULT_SWAP", "kv_offload", "notes", "swap"]

DEFAULT_SWAP = 4 * GIB
"""``--swap-space`` of each rank where it is not given (vLLM 0.8.5 to 0.17 ``config.py``)."""
_REPLICAS = "data-parallel-size-local"


def kv_offload(shape: Shape) -> Term | None:
    """
    Return the host memory of ``--kv-offloading-size``, None where the engine itself pins none.

    The flag is the GiB of all tensor and pipeline ranks of a replica together; each replica on this host has its own.
    With the lmcache backend the memory is not the engine's but its cache server's. Raise LawError for a bad number.
    """
    size = flag_gib(shape.given, "kv-offloading-size")
    if not size or shape.given.get("kv-offloading-backend", "native") != "native":
        return None
    replicas = _replicas(shape)
    note = "all ranks of a replica together" + (f", {replicas} replicas" if replicas > 1 else "")
    return Term("kv_offload", size * replicas, "flag", "--kv-offloading-size", note)


def swap(shape: Shape, ranks: int) -> Term:
    """
    Return the host memory that the V0 engine pins for swapped blocks: ``--swap-space`` GiB for each of ``ranks``.

    Raise LawError for a bad number. Only for the V0 engine: V1 pins none.
    """
    given = flag_gib(shape.given, "swap-space")
    size = DEFAULT_SWAP if given is None else given
    note = f"{gib_text(size)} for each rank"
    return Term("swap", size * ranks, "default" if given is None else "flag", "--swap-space", note)


def notes(shape: Shape, core: str | None) -> list[str]:
    """
    Return what must be said of host memory that is no term.

    ``core`` is ``V0``, ``V1``, or None where a release has both and the log does not name it.
    """
    found = []
    if core is None:
        found.append("the log does not tell V0 from V1: whether the swap space is pinned is not known")
    elif core == "V1" and "swap-space" in shape.given:
        found.append("--swap-space pins nothing: only the V0 engine swaps")
    if flag_gib(shape.given, "kv-offloading-size") and shape.given.get("kv-offloading-backend") == "lmcache":
        found.append("--kv-offloading-size with the lmcache backend is not pinned by the engine")
    weights = flag_gib(shape.given, "cpu-offload-gb")
    if weights:
        found.append(f"--cpu-offload-gb: {gib_text(weights)} of each rank's weights are in host memory")
    return found


def _replicas(shape: Shape) -> int:
    text = shape.given.get(_REPLICAS)
    if text is None:
        return shape.data_parallel_size
    if not text.isdecimal():
        raise LawError(f"--{_REPLICAS} must be a whole number, not {text[:40]}")
    number(f"--{_REPLICAS}", int(text), above=0, most=1 << 20)
    return int(text)
