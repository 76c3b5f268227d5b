"""YAML that others wrote, with what its aliases stand for held to a size."""

from __future__ import annotations

import pytest
import yaml

from budget_exporter.engines._config_file import config_arguments
from budget_exporter.engines._yaml import load


def multiplied(item: str, again: str, levels: int) -> str:
    lines = [f"x0: &a0 {item}"]
    lines += [f"x{i}: &a{i} {again.format(', '.join([f'*a{i - 1}'] * 4))}" for i in range(1, levels)]
    return "\n".join(lines)


def test_aliases_and_merges_are_put_in() -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\n"
    assert load(text) == yaml.safe_load(text) == {"a": {"x": 1}, "b": {"x": 1, "y": [{"x": 1}, {"x": 1}]}}
    assert load("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (multiplied("[lol]", "[{}]", 20), "too much"),
        (multiplied("{k: v}", "{{<<: [{}]}}", 20), "too much"),
        ("a: &a [*a]", "within itself"),
        ("a: &a {b: {c: *a}}", "within itself"),
    ],
)
def test_aliases_that_multiply_are_refused_before_anything_is_made_of_them(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load(text)


def test_a_few_aliases_of_a_long_text_are_too_much_for_a_file_of_flags() -> None:
    with pytest.raises(ValueError, match="too much"):
        config_arguments("a.yaml", multiplied("x" * 200_000, "[{}]", 4), ())
