from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from budget_exporter.verdicts.logic import all_of, any_of

ANSWERS = st.lists(st.sampled_from([True, False, None]))


@pytest.mark.parametrize(
    ("answers", "any_", "all_"),
    [
        ([], None, None),
        ([None], None, None),
        ([True, None], True, None),
        ([False, None], None, False),
        ([False, False], False, False),
        ([True, True], True, True),
        ([True, False], True, False),
    ],
)
def test_an_unknown_answer_decides_nothing(answers: list[bool | None], any_: bool | None, all_: bool | None) -> None:
    assert any_of(answers) is any_
    assert all_of(answers) is all_


@given(ANSWERS, st.booleans())
def test_learning_an_unknown_answer_never_overturns_a_decision(answers: list[bool | None], learnt: bool) -> None:
    later = [learnt if answer is None else answer for answer in answers]
    for decide in (any_of, all_of):
        assert decide(answers) in {None, decide(later)}
