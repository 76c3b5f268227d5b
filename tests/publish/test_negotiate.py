from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from budget_exporter.publish.negotiate import format_for, gzip_wanted

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS_2, "openmetrics"),
        (PROMETHEUS_3, "openmetrics"),
        (BROWSER, "text"),
        ("", "text"),
        ("*/*", "text"),
        ("application/openmetrics-text", "openmetrics"),
        ("Application/OpenMetrics-Text; Version=1.0.0", "openmetrics"),
        ('application/openmetrics-text; version="1.0.0"', "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "text"),
        ("application/openmetrics-text;version=2.0.0", "text"),
        ("application/openmetrics-text;q=0", "text"),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", "text"),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", "openmetrics"),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.1,*/*", "openmetrics"),
        ("application/openmetrics-text;q=high", "text"),
        ("application/openmetrics-text;q=7", "text"),
        ("application/openmetrics-text;q=nan", "text"),
        ("application/json", "text"),
    ],
)
def test_format(accept: str, expected: str) -> None:
    assert format_for(accept) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.8", True),
        ("gzip;q=0", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("x-gzip-not", False),
        ("", False),
    ],
)
def test_gzip(header: str, expected: bool) -> None:
    assert gzip_wanted(header) is expected


@given(st.text())
def test_no_header_raises(header: str) -> None:
    assert format_for(header) in {"text", "openmetrics"}
    assert gzip_wanted(header) in {True, False}


@given(st.text(alphabet=";,=q*/.0123 gzipa-"))
def test_no_almost_header_raises(header: str) -> None:
    assert format_for(header) in {"text", "openmetrics"}
    assert gzip_wanted(header) in {True, False}
