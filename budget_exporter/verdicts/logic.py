"""Three-valued logic: what could not be evaluated is None, and neither true nor false for it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["all_of", "any_known", "any_of"]


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Return True where one answer is, False where all are False, else None; None of no answers."""
    given = tuple(answers)
    if True in given:
        return True
    return None if not given or None in given else False


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """Return False where one answer is, True where all are True, else None; None of no answers."""
    given = tuple(answers)
    if False in given:
        return False
    return None if not given or None in given else True


def any_known(answers: Iterable[bool | None]) -> bool | None:
    """Return whether any answer holds, of those that could be evaluated; the others say nothing against it."""
    return any_of(answer for answer in answers if answer is not None)
