"""Tables and texts of every form."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from flodl.monitor.media.tables import table_of, text_of
from tests.rows import each_row

EXPECTED = (("a", 1), ("b", 2))


@each_row(
    "rows",
    [
        [{"name": "a", "count": 1}, {"name": "b", "count": 2}],
        {"name": ["a", "b"], "count": torch.tensor([1, 2])},
        {"name": np.array(["a", "b"]), "count": (1, 2)},
    ],
)
def test_rows_and_columns(rows):
    made = table_of(rows)
    assert (made.columns, made.rows) == (("name", "count"), EXPECTED)
    assert table_of([["a", 1], ("b", 2)], ["name", "count"]) == made


def test_cells_become_plain_values():
    cells = [torch.tensor(2.5), np.float32(0.5), None, True, math.nan, "x" * 3000, {"k": 1}]
    made = table_of([cells], [str(at) for at in range(7)])
    assert made.rows[0][:4] == (2.5, 0.5, None, True)
    assert len(str(made.rows[0][5])) == 2000
    shown = json.loads(json.dumps(made.as_json(), allow_nan=False))["rows"][0]
    assert shown[4] == "nan"
    assert shown[6] == "{'k': 1}"


def test_what_is_too_long_is_cut_and_counted():
    made = table_of({"n": range(1500)})
    assert (len(made.rows), made.left_out) == (1000, 500)
    text = text_of("x" * 100_007)
    assert (len(text.text), text.left_out) == (100_000, 7)
    missing = table_of([{"a": 1}, {"b": 2}])
    assert missing.rows == ((1, None), (None, 2))
    assert table_of([], ["a"]).rows == ()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: table_of("abc"), "a table of a str"),
        (lambda: table_of([[1, 2]]), r"pass columns=\["),
        (
            lambda: table_of([[1, 2], [3]], ["a", "b"]),
            "row 2 of the table has 1 cells for 2",
        ),
        (lambda: table_of({"a": [1], "b": [1, 2]}), "different lengths: {'a': 1, 'b': 2}"),
        (lambda: table_of({"a": [1]}, ["b"]), "no column 'b'; it has"),
        (lambda: table_of([[0] * 201], [str(at) for at in range(201)]), "201 columns"),
        (lambda: text_of(3), r"a int is not a text; pass str\(value\)"),
    ],
)
def test_an_error_says_what_to_pass(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_cells_with_several_values_are_lists_as_text():
    made = table_of([[torch.tensor([1, 2]), np.array([0.5])]], ["a", "b"])
    assert made.rows == (("[1, 2]", "[0.5]"),)
