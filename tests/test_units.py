from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from budget_exporter.units import (
    GIB,
    KIB,
    MIB,
    gib_text,
    human_int,
    parse_duration,
    parse_size,
    printed_bytes,
    rounding_of,
)


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("31.29", "GiB", 33_597_381_673),
        ("31.859375", "GiB", 34_208_743_424),
        ("-0.06", "GiB", -64_424_509),
        ("\N{MINUS SIGN}0.06", "GiB", -64_424_509),
        ("1,024", "MiB", GIB),
        ("0.5", "KiB", 512),
        ("0.5", "B", 0),
        ("1.5", "B", 2),
        ("2.5", "B", 2),
        ("1", "TiB", 1024 * GIB),
    ],
)
def test_printed_figures(text: str, unit: str, size: int) -> None:
    assert printed_bytes(text, unit) == size


@pytest.mark.parametrize(("text", "unit"), [("1", "GB"), ("1", ""), ("1", "gib")])
def test_an_unknown_unit_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="unknown unit"):
        printed_bytes(text, unit)
    with pytest.raises(ValueError, match="unknown unit"):
        rounding_of(text, unit)


@pytest.mark.parametrize(
    ("text", "unit", "half"),
    [
        ("31.29", "GiB", 5_368_709),
        ("2.9", "GiB", 53_687_091),
        ("3", "GiB", GIB // 2),
        ("12", "MiB", MIB // 2),
        ("7", "B", 0),
    ],
)
def test_how_much_a_printed_figure_may_stand_for(text: str, unit: str, half: int) -> None:
    assert rounding_of(text, unit) == half


@given(st.integers(min_value=-(1 << 45), max_value=1 << 45))
def test_a_size_lies_within_the_rounding_of_what_is_printed_of_it(size: int) -> None:
    text = gib_text(size).removesuffix(" GiB")
    assert abs(printed_bytes(text) - size) <= rounding_of(text) + 1


def test_people_read_two_decimals() -> None:
    assert gib_text(34_208_743_424) == "31.86 GiB"
    assert gib_text(-64_424_509) == "-0.06 GiB"
    assert gib_text(0) == "0.00 GiB"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 * MIB),
        ("1.5 GB", 1_500_000_000),
        ("2.344MiB", 2_457_862),
        (" 5.25GiB ", 5_637_144_576),
        ("10kB", 10_000),
        ("10KB", 10_000),
        ("1KiB", KIB),
        ("3B", 3),
        ("1TB", 10**12),
        ("1TiB", 1 << 40),
        ("1MB", 10**6),
    ],
)
def test_configured_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["256", "1.5", "MiB", "-1MiB", "1 mib", "1GiBs", "", "1e3MiB", "1,024MiB", "1.MiB"])
def test_a_size_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size with a unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("100ms", 0.1), ("5s", 5.0), (" 2 m ", 120.0), ("1h", 3600.0), ("1.5d", 129_600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "s", "-1s", "5 sec", "1h30m", ""])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration with a unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        (" 4096 ", 4096),
        ("-1", -1),
        ("2k", 2000),
        ("2K", 2048),
        ("25.6k", 25_600),
        ("1.5m", 1_500_000),
        ("64M", 64 * MIB),
        ("1g", 10**9),
        ("1G", GIB),
        ("1t", 10**12),
        ("1T", 1 << 40),
        ("1.001k", 1000),
    ],
)
def test_integers_as_the_engine_reads_them(text: str, number: int) -> None:
    assert human_int(text) == number


@pytest.mark.parametrize("text", ["1.5G", "1.5M", "1Mi", "1e9", "auto", "", "k", "1.5"])
def test_what_the_engine_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - int()'s own text differs by Python version
        human_int(text)


def test_a_number_beyond_floats_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"^too large: '999"):
        human_int("9" * 400 + "k")


def test_a_decimal_with_a_binary_suffix_says_why() -> None:
    with pytest.raises(ValueError, match="binary suffix 'G'"):
        human_int("1.5G")
