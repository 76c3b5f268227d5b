"""From bytes of KV pool to tokens and requests, and back to the price of a token."""

from __future__ import annotations

__all__ = ["concurrency", "fits_one_request", "measured_price", "needed", "tokens"]


def tokens(pool: int, bytes_per_token: int) -> int:
    """Return the tokens a pool of ``pool`` bytes holds at ``bytes_per_token``; 0 for a pool that is not there."""
    return max(0, pool) // bytes_per_token


def needed(bytes_per_token: float, length: int, requests: int = 1) -> int:
    """Return the bytes that ``requests`` requests of ``length`` tokens need, to the next whole byte."""
    return -int(-(bytes_per_token * length * requests) // 1)


def concurrency(pool_tokens: int, max_model_len: int) -> float:
    """
    Return how many requests of ``max_model_len`` tokens the pool holds.

    Source: vLLM prints it as ``Maximum concurrency for N tokens per request`` with two decimals; from 0.20.1 the
    tokens it prints are this number times ``max_model_len``, so that the two agree (``v1/core/kv_cache_utils.py``).
    """
    return pool_tokens / max_model_len


def measured_price(pool: int, pool_tokens: int) -> int:
    """
    Return the price of a token in whole bytes, measured: the pool's exact bytes over the tokens the engine got of it.

    It holds for one shape only: block alignment and mamba pages weigh differently in another.
    """
    return round(pool / pool_tokens)


def fits_one_request(reserved_bytes_per_token: float, measured_bytes_per_token: float) -> bool:
    """
    Return whether a pool capped at the reserve of one request serves that request.

    ``reserved_bytes_per_token`` includes the reserve's factor. Length does not matter: reserve and need both follow it,
    so a shorter context mends nothing. Source: public starts of the expert-offload fork.
    """
    return measured_bytes_per_token <= reserved_bytes_per_token
