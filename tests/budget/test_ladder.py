from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.ladder import BONUS, DOWN, Proof, Rung, next_rung, proof, proves, scaled_pool
from budget_exporter.errors import LawError

REFERENCE = Rung(200_704, "pass", seqs=3, pool_bytes=3_166_500_000)
SCALED = scaled_pool(3_166_500_000, 3, 200_704, 3, 184_320)


def rung(length: int, outcome: str, **more: int | bool | None) -> Rung:
    return Rung(length, outcome, **more)  # type: ignore[arg-type]  # outcomes and fields by name


@pytest.mark.parametrize(
    ("tried", "reference", "holds", "sentence"),
    [
        (rung(184_320, "unknown"), None, False, "which is no failure"),
        (rung(184_320, "oom"), None, True, ""),
        (rung(184_320, "oom", seqs=3, pool_bytes=SCALED), REFERENCE, True, ""),
        (rung(184_320, "oom", seqs=3, pool_bytes=SCALED + 1), REFERENCE, False, "is above the"),
        (rung(184_320, "oom", seqs=3), REFERENCE, True, ""),
        (rung(184_320, "pass", seqs=3, pool_bytes=SCALED, survived=True), REFERENCE, True, ""),
        (rung(184_320, "pass", seqs=3, pool_bytes=SCALED), REFERENCE, True, "no large request has been sent"),
        (rung(184_320, "pass", seqs=3, pool_bytes=SCALED - 1), REFERENCE, False, "was not scaled to"),
        (rung(184_320, "pass", seqs=3), REFERENCE, True, "no large request has been sent"),
        (rung(184_320, "pass", pool_bytes=1, survived=True), rung(200_704, "pass"), True, ""),
        (rung(184_320, "pass", pool_tokens=184_319), None, False, "does not hold the window"),
        (rung(184_320, "pass", pool_tokens=184_320, survived=True), None, True, ""),
        (rung(184_320, "pass", survived=False), None, False, "died of the first large request"),
    ],
)
def test_what_a_rung_proves(tried: Rung, reference: Rung | None, holds: bool, sentence: str) -> None:
    proved, note = proves(tried, reference)
    assert proved is holds
    assert sentence in note
    assert bool(note) is bool(sentence)


def test_nothing_tried_proves_nothing() -> None:
    assert proof([]) == Proof(None, None, None)


def test_the_measured_ceiling_is_found_step_by_step() -> None:
    """262144 and 245760 died in capture, 241664 passed: the next bonus step is a known failure."""
    rungs = [rung(262_144, "oom")]
    assert proof(rungs).next == 245_760
    rungs.append(rung(245_760, "oom"))
    assert proof(rungs).next == 229_376
    for length in range(229_376, 245_760, BONUS):
        assert proof(rungs).next == length
        rungs.append(rung(length, "pass", survived=True))
    assert proof(rungs) == Proof(241_664, 245_760, None)


def test_an_unknown_rung_is_tried_again_and_is_no_failure() -> None:
    found = proof([rung(262_144, "oom"), rung(245_760, "unknown")])
    assert (found.longest_pass, found.shortest_oom, found.next) == (None, 262_144, 245_760)
    assert "no failure" in found.notes[0]


def test_a_rung_that_proves_nothing_is_tried_again() -> None:
    unscaled = rung(184_320, "pass", seqs=3, pool_bytes=SCALED // 2)
    found = proof([unscaled], REFERENCE)
    assert (found.longest_pass, found.next) == (None, 184_320)


def test_a_shape_that_died_of_its_first_large_request_counts_as_a_failure() -> None:
    found = proof([rung(262_144, "pass", survived=False)])
    assert (found.longest_pass, found.shortest_oom, found.next) == (None, 262_144, 245_760)


def test_a_step_down_onto_what_has_passed_goes_up_in_bonus_steps_instead() -> None:
    rungs = [rung(200_704, "pass", survived=True), rung(212_992, "oom")]
    assert proof(rungs).next == 204_800
    rungs.append(rung(204_800, "oom"))
    assert proof(rungs).next is None


def test_a_pass_above_a_failure_is_said() -> None:
    found = proof([rung(204_800, "oom"), rung(204_800, "pass", survived=True)])
    assert found.notes == ("204800 passed although 204800 failed: memory differs from boot to boot",)
    assert found.next is None


def test_a_lower_pass_after_a_higher_one_goes_on_from_the_higher() -> None:
    assert proof([rung(200_704, "pass", survived=True), rung(184_320, "pass", survived=True)]).next == 204_800


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: next_rung(0, "pass"), "length"),
        (lambda: next_rung(1, "pass", 0), "known_oom"),
        (lambda: scaled_pool(-1, 1, 1, 1, 1), "reference_bytes"),
        (lambda: scaled_pool(1, 0, 1, 1, 1), "reference_seqs"),
        (lambda: scaled_pool(1, 1, 0, 1, 1), "reference_length"),
        (lambda: scaled_pool(1, 1, 1, 0, 1), "seqs"),
        (lambda: scaled_pool(1, 1, 1, 1, -4), "length"),
    ],
)
def test_what_cannot_be_is_named(ask: Callable[[], int | None], field: str) -> None:
    with pytest.raises(LawError, match=rf"^{field} must "):
        ask()


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_a_ladder_ends_next_to_the_ceiling(start: int, ceiling: int) -> None:
    rungs: list[Rung] = []
    length: int | None = start
    while length is not None:
        rungs.append(rung(length, "pass", survived=True) if length <= ceiling else rung(length, "oom"))
        length = proof(rungs).next
        # Nothing bounds a ladder that has only passed but its own ceiling, 256 bonus steps away at most.
        assert len(rungs) < 400
    found = proof(rungs)
    assert found.shortest_oom is not None
    assert found.shortest_oom > ceiling
    if found.longest_pass is None:
        assert found.shortest_oom <= DOWN
    else:
        assert found.longest_pass <= ceiling < found.shortest_oom <= found.longest_pass + BONUS
