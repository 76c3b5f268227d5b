"""
Will an expert-offload shape boot? What its parts take of the device, before it is tried.

    left = size - (weights + KV pool + graphs + arena + non-torch + driver reserve)

A necessary condition, no forecast of free memory: a shape measured on two 31.86 GiB cards sums to 2.5-2.7 GiB left and
held 0.89, and one that summed to 0.13 died at graph capture. Source: operators of the expert-offload fork, 2026-10.
"""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.facts.ledger import Term

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The parts that are known, the names of those that are not, and what they leave of ``size`` bytes."""

    size: int
    terms: tuple[Term, ...]
    missing: tuple[str, ...]

    @property
    def total(self) -> int:
        """Return the bytes of the parts that are known."""
        return sum(term.bytes for term in self.terms)

    @property
    def left(self) -> int | None:
        """
        Return the bytes left, signed; None while a part is missing.

        This is the room of the phases that allocate last, compilation and graph capture beyond its charge.
        """
        return None if self.missing else self.size - self.total


def predict(
    size: int,
    *,
    weights: Term | None,
    kv_pool: Term | None,
    cuda_graphs: Term | None,
    arena: Term | None,
    non_torch: Term | None,
    driver_reserve: Term | None,
) -> Prediction:
    """Return what the parts (bytes, None where unknown) leave of a device of ``size`` bytes."""
    parts = {
        "weights": weights,
        "kv_pool": kv_pool,
        "cuda_graphs": cuda_graphs,
        "arena": arena,
        "non_torch": non_torch,
        "driver_reserve": driver_reserve,
    }
    known = tuple(term for term in parts.values() if term is not None)
    return Prediction(size, known, tuple(name for name, term in parts.items() if term is None))
