"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from flodl.monitor import format_bytes, format_duration, format_eta, format_metric
from tests.rows import each_row


@pytest.mark.case("runtime", 43)
def test_eta_bytes_and_metrics_read_well():
    etas = [0.042, 1, 1.5, 59.99, 90, 3661]
    assert [format_eta(one) for one in etas] == ["42ms", "1s", "1.5s", "59.9s", "1m 30s", "1h 01m"]
    sizes = [512, 512000, 104857600, 2254857830]
    assert [format_bytes(one) for one in sizes] == ["512 B", "500 KB", "100 MB", "2.1 GB"]
    values = [0, 1e-4, 1.2345, 12345.67]
    assert [format_metric(one) for one in values] == ["0", "1.00e-4", "1.2345", "12345.67"]


@pytest.mark.case("runtime", 44)
def test_durations_read_well():
    assert [format_duration(one) for one in [0.042, 1.25, 125]] == ["42ms", "1.2s", "2m05s"]


@each_row(
    ("seconds", "eta", "duration"),
    [
        (-1, "—", "—"),
        (math.nan, "—", "—"),
        (math.inf, "—", "—"),
        (0, "0ms", "0ms"),
        (0.283, "283ms", "283ms"),
        (0.9999, "999ms", "999ms"),
        (1.1, "1.1s", "1.1s"),
        (2, "2s", "2.0s"),
        (59.999, "59.9s", "59.9s"),
        (60, "1m 00s", "1m00s"),
        (272, "4m 32s", "4m32s"),
        (3599.9, "59m 59s", "59m59s"),
        (11520, "3h 12m", "3h12m"),
        (360000, "100h 00m", "100h00m"),
    ],
)
def test_time_at_the_edges(seconds, eta, duration):
    assert (format_eta(seconds), format_duration(seconds)) == (eta, duration)


@each_row(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (1024**2 - 1, "1 MB"),
        (1024**3 - 1, "1.0 GB"),
        (6 * 1024**3, "6.0 GB"),
    ],
)
def test_bytes_at_the_edges(size, text):
    assert format_bytes(size) == text


@each_row(
    ("value", "text"),
    [
        (-0.0, "0"),
        (0.001, "0.0010"),
        (-0.00099, "-9.90e-4"),
        (5e-324, "4.94e-324"),
        (99.99, "99.9900"),
        (100, "100.00"),
        (-250.125, "-250.12"),
        (3.4e38, "3.40e38"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_metrics_at_the_edges(value, text):
    assert format_metric(value) == text
