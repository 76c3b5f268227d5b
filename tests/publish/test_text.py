from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from budget_exporter.publish.flags import by_label, shown
from budget_exporter.publish.text import presentable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/x", "/models/x"),
        ("https://example.org/a", "https://example.org/a"),
        ("https://user:pass@example.org/a?token=x#y", "https://example.org/a"),
        ("see s3://k:s@b/x?sig=1 and gs://t@c/y#z now", "see s3://b/x and gs://c/y now"),
        ("https://a:p@b@example.org/", "https://example.org/"),
        ("Größe", "Größe"),
        (b"\xffa".decode(errors="surrogateescape"), "?a"),
        ("a@b?c", "a@b?c"),
    ],
)
def test_presentable(text: str, expected: str) -> None:
    assert presentable(text) == expected


@given(st.text(st.characters(exclude_categories=[])))
def test_whatever_is_presentable_can_be_encoded_and_stays_as_it_is(text: str) -> None:
    once = presentable(text)
    once.encode()
    if "://" not in text:
        assert presentable(once) == once


def test_a_command_line_full_of_addresses_costs_no_time() -> None:
    # As long as Linux lets one argument be; searched from each address to the end it would take a minute.
    text = "://a" * 32_000
    began = time.process_time()
    assert presentable(text) == text
    assert time.process_time() - began < 2


def test_flags_that_may_hold_a_secret_are_not_shown_and_counts_of_tokens_are() -> None:
    given_flags = {
        "--api-key": "a",
        "--ssl-keyfile": "b",
        "HF_TOKEN": "c",
        "OPENAI_API_KEY": "d",
        "--max-num-batched-tokens": "8192",
        "--tokenizer": "e",
        "VLLM_CUDAGRAPH_MEM_BASE_MB": "0",
        "db_password": "f",
        "--root-auth-header": "g",
    }
    assert set(shown(given_flags)) == {"--max-num-batched-tokens", "--tokenizer", "VLLM_CUDAGRAPH_MEM_BASE_MB"}


def test_a_flag_has_one_name_however_it_was_written() -> None:
    assert by_label({"--max-model-len": "1"}) == by_label({"max_model_len": "1"}) == {"max_model_len": "1"}
