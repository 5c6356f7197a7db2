"""The index of acceptance cases is made from the tests, and is up to date."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_index_of_cases_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/cases.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_index_says_how_a_slow_test_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    cases = importlib.import_module("cases")
    rows = [
        "| `a.py::test_one` | failure | 1.0 | 2026-11-24 | 12345678 | 2 cores |",
        "| `a.py::test_two[x]` | passed | 1.0 | 2026-11-25 | 12345678 | 2 cores |",
        "| `a.py::test_two[y]` | skipped | 0.0 | 2026-11-26 | 12345678 | 2 cores |",
        "| `a.py::test_three` | no record |  |  |  |  |",
    ]
    monkeypatch.setattr(cases, "slow_rows", lambda: rows)
    ends = {name: cases._runs_when(f"a.py::test_{name}", {"slow"}) for name in ("one", "two")}
    assert ends["one"] == "slow: failed 2026-11-24"
    assert ends["two"] == ("slow: 2026-11-25 (2 cores); 1 of 2 without a pass: skipped 2026-11-26")
    assert cases._runs_when("a.py::test_three", {"slow"}) == "slow: no record"
    assert cases._runs_when("a.py::test_four", {"slow"}) == "slow: no record"
