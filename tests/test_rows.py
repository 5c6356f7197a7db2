"""One test with many rows says of each row that fails which one it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import NO_PLUGINS
from tests.rows import each_row, sampled

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import os
from pathlib import Path

import pytest

from tests.rows import each_row


@pytest.fixture
def word():
    return "shared"


@each_row(("size", "said"), [(1, "one"), pytest.param(2, "zwei", id="german"), (3, "drei")])
@each_row("way", ["up", "down"], ids=str.upper)
def test_table(size, said, way, word, tmp_path, monkeypatch):
    assert word == "shared"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "left").touch()
    assert "LEFT" not in os.environ
    monkeypatch.setenv("LEFT", "1")
    assert not Path(os.environ["FLODL_CACHE_DIR"]).exists()
    Path(os.environ["FLODL_CACHE_DIR"]).mkdir()
    assert (size, said) in [(1, "one"), (2, "two")], f"{size} is not {said}"


@each_row("number", range(5))
@pytest.mark.parametrize("other", [1, 2])
def test_partly(number, other):
    if number == 3:
        pytest.skip("no threes")
    if number == other == 2:
        pytest.fail("two twice")
"""


def test_every_row_that_fails_is_named_with_its_own_message(tmp_path):
    (tmp_path / "test_one.py").write_text(PROGRAM)
    cache = {"FLODL_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", "-c", os.devnull, "test_one.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **cache, **NO_PLUGINS},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    failed = [line for line in done.stdout.splitlines() if line.startswith("SUBFAILED")]
    assert [line.partition(" - ")[0] for line in failed] == [
        "SUBFAILED[UP-german] test_one.py::test_table",
        "SUBFAILED[DOWN-german] test_one.py::test_table",
        "SUBFAILED[UP-3-drei] test_one.py::test_table",
        "SUBFAILED[DOWN-3-drei] test_one.py::test_table",
        "SUBFAILED[2] test_one.py::test_partly[2]",
    ]
    assert failed[2].endswith(" - AssertionError: 3 is not drei")
    assert failed[4].endswith(" - Failed: two twice")
    assert "test_one.py:25: AssertionError" in done.stdout
    assert "rows.py" not in done.stdout
    assert done.returncode == 1


def test_a_table_has_the_cases_of_its_rows_and_no_other_marks():
    def test_of(number):
        pass

    rows = [pytest.param(number, marks=pytest.mark.case("cli", number)) for number in (3, 5)]
    marks = each_row("number", rows)(test_of).pytestmark
    assert [mark.args for mark in marks] == [("cli", 3), ("cli", 5)]
    with pytest.raises(ValueError, match="a row cannot be slow"):
        each_row("number", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(ValueError, match="test_of has no rows"):
        each_row("number", [])(test_of)


def test_a_sample_has_each_value_of_each_column_and_the_rest_is_slow():
    rows = sampled("abc", (1, 2))
    assert [row.values for row in rows] == [(x, n) for x in "abc" for n in (1, 2)]
    kept = [row.values for row in rows if not row.marks]
    assert kept == [("a", 1), ("b", 2), ("c", 1)]
    assert {mark.name for row in rows for mark in row.marks} == {"slow"}
