"""What ``scripts/covered.py`` makes of coverage's report."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

spec = spec_from_file_location("covered", Path(__file__).parent.parent / "scripts" / "covered.py")
script = module_from_spec(spec)
spec.loader.exec_module(script)


def told(lines, lines_run, branches, branches_run):
    return {
        "summary": {
            "num_statements": lines, "covered_lines": lines_run,
            "num_branches": branches, "covered_branches": branches_run,
        }
    }  # fmt: skip


def test_every_test_belongs_to_one_part():
    root = script.ROOT
    files = set((root / "tests").rglob("test_*.py"))
    found = [file for part in script.parts() for file in script.files_of(part)]
    assert len(found) == len(set(found))
    assert set(found) == files


def test_lines_and_branches_count_together_for_a_package_and_the_folders_below(monkeypatch):
    found = script.counted(
        {"fdl/log.py": told(10, 10, 0, 0), "fdl/run/a/b.py": told(60, 53, 30, 27)}
    )
    assert found["fdl/*.py"] == (10, 10, 0, 0)
    assert found["fdl/run"] == (60, 53, 30, 27)
    assert found["all"] == found["fdl"] == (70, 63, 30, 27)
    monkeypatch.setattr(script, "parts", lambda: ["tests/fdl", "tests/fdl/run"])
    page = script.page(found, "1234abcd", ["tests/fdl", "tests/fdl/run"])
    assert "90 % of both together: PASS" in page
    assert "| fdl | 90.0 % | 63 of 70 | 27 of 30 |" in page
    page = script.page(found, "1234abcd", ["tests/fdl"])
    assert "MISSED" in page, "what is not measured is not known"
    assert page.endswith("Not measured yet: tests/fdl/run.\n")
