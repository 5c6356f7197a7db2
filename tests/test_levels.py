"""Which tests run when: the marks, the number of processes, the durations, the two lists."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import levels, merge_list
from tests.levels import NO_PLUGINS

ROOT = Path(__file__).resolve().parents[1]


def script(name):
    """A program of ``scripts`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "cores", "count"),
    [
        ([], 2, 4),
        (["-m", "not slow", "-ra"], 2, 4),
        (["--cov", "--junitxml", "results.xml"], 4, 8),
        ([], 16, 16),
        (["tests/fdl"], 2, 4),
        (["tests/test_levels.py"], 2, 0),
        (["tests/test_levels.py::test_it", "-k", "it"], 2, 0),
        (["tests/fdl", "tests/test_levels.py"], 2, 4),
        (["-n", "3"], 2, 0),
        (["-n0"], 2, 0),
        (["--numprocesses=1"], 2, 0),
        (["--pdb"], 2, 0),
        (["-s"], 2, 0),
        (["--collect-only", "-q"], 2, 0),
    ],
)
def test_processes_follow_from_the_command_line(words, cores, count, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert levels.workers(words, cores) == count


def test_without_the_plugin_for_processes_tests_run_one_after_another(monkeypatch):
    monkeypatch.setattr(levels.importlib.util, "find_spec", lambda _: None)
    assert levels.workers([], 2) == 0


@pytest.fixture
def typed(tmp_path):
    """Run pytest in an empty folder with three tests, of which one is in the list."""
    tests = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(3.1)\ndef test_c(): assert 0"
    (tmp_path / "test_it.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  merge:\n  slow:\n")
    (tmp_path / "list.txt").write_text("# seconds, name\n4.0 test_it.py::test_c\n")
    program = (
        "import sys, pytest; from pathlib import Path; from tests import merge_list\n"
        "merge_list.LISTED = Path('list.txt')\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )

    def run(*words):
        command = [sys.executable, "-c", program, "-p", "tests.levels", "-p", "xdist.plugin"]
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **NO_PLUGINS}
        command += ["-n0", "-q", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


def test_a_listed_test_runs_only_where_it_is_asked_for(typed):
    done = typed("-m", "not slow and not merge", "-k", "not test_b")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 deselected" in done.stdout
    done = typed("-m", "merge")
    assert "FAILED test_it.py::test_c" in done.stdout
    assert "1 failed, 2 deselected" in done.stdout


def test_a_long_test_without_a_mark_fails_the_check_and_every_result_is_kept(typed, tmp_path):
    done = typed("--results", "results.jsonl", "--check-seconds", "-k", "not test_c")
    assert done.returncode == 1
    assert "error: test_it.py::test_b took 3.1 s without the mark `merge`" in done.stdout
    assert "Make it faster, or `python scripts/merge_tests.py` marks it." in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["test"], row["result"]) for row in rows] == [
        ("test_it.py::test_a", "passed"),
        ("test_it.py::test_b", "passed"),
    ]
    assert rows[1]["seconds"] >= 3.1


def test_the_list_takes_long_tests_and_lets_fast_ones_go(tmp_path):
    merge_tests = script("merge_tests")
    results = tmp_path / "results.jsonl"

    def ended(test):
        return "failed" if test.endswith("_failed") else "passed"

    rows = [
        ("t/test_a.py::test_long", 1.4, 0.0),
        ("t/test_a.py::test_between", 0.8, 0.0),
        ("t/test_a.py::test_was_long", 0.8, 0.0),
        ("t/test_a.py::test_is_fast_now", 0.5, 0.0),
        ("t/test_a.py::test_prepares_for_others", 2.5, 2.4),
        ("t/test_b.py::test_prepares_long", 4.0, 3.9),
        ("t/test_b.py::test_other", 0.1, 0.0),
        ("t/test_c.py::test_any", 0.1, 0.0),
        ("t/test_e.py::test_failed", 0.1, 0.0),
    ]
    lines = (
        json.dumps({"test": test, "result": ended(test), "seconds": seconds, "setup": setup})
        for test, seconds, setup in rows
    )
    results.write_text("\n".join(lines))
    known = {
        "t/test_a.py::test_was_long": 5.0,
        "t/test_a.py::test_is_fast_now": 5.0,
        "t/test_c.py": 6.0,
        "t/test_d.py::test_not_run": 7.0,
        "t/test_e.py::test_failed": 8.0,
    }
    new = merge_tests.chosen(known, merge_tests.measured([results]))
    assert new == {
        "t/test_a.py::test_long": 1.4,
        "t/test_a.py::test_was_long": 0.8,
        "t/test_b.py": 3.9,
        "t/test_d.py::test_not_run": 7.0,
        "t/test_e.py::test_failed": 8.0,
    }
    told = merge_tests.moved(known, new)
    assert "+   1.4 s  t/test_a.py::test_long" in told
    assert "-   6.0 s  t/test_c.py" in told
    assert told[-1] == "5 lines, 21 s; before 5 lines, 31 s"


def test_every_test_of_the_list_is_there():
    names = {}
    for name in merge_list.listed():
        file, _, test = name.partition("::")
        if file not in names:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            names[file] = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
        assert not test or test.partition("[")[0] in names[file], name


SUITE = [f"t.py::test_{letter}" for letter in "abcd"]


@pytest.fixture
def slow_tests(tmp_path, monkeypatch):
    """The script of the slow suite, with a page of its own."""
    module = script("slow_tests")
    monkeypatch.setattr(module, "PAGE", tmp_path / "slow.md")
    monkeypatch.setattr(module, "machine", lambda: "2 cores, no GPU")
    module.PAGE.write_text(
        "| `t.py::test_a` | passed | 300.0 | 2026-01-02 | 1234567 | 2 cores, no GPU |\n"
        "| `t.py::test_b` | failed | 200.0 | 2026-01-01 |  | 2 cores, no GPU |\n"
        "| `t.py::test_gone` | passed | 1.0 | 2026-01-01 |  | 2 cores, no GPU |\n"
    )
    return module


def test_what_ran_longest_ago_comes_first_and_parts_fit(slow_tests):
    cut = slow_tests.parts(SUITE)
    assert cut == [["t.py::test_c", "t.py::test_d", "t.py::test_b"], ["t.py::test_a"]]
    old = slow_tests.stale(SUITE)
    assert old == ["t.py::test_c", "t.py::test_d", "t.py::test_b", "t.py::test_a"]


def test_a_path_chooses_the_tests_below_it(slow_tests):
    names = ["a/t.py::test_a[1]", "a/t.py::test_a[2]", "a/t.py::test_ab", "ab/t.py::test_a"]
    assert slow_tests.below([], names) == names
    assert slow_tests.below(["a/"], names) == slow_tests.below(["a/t.py"], names) == names[:3]
    assert slow_tests.below(["a/t.py::test_a", "ab"], names) == [*names[:2], names[3]]
    assert slow_tests.below(["a/t.py::test_a[2]"], names) == names[1:2]


def test_results_are_kept_with_date_and_commit(slow_tests, tmp_path):
    results = tmp_path / "results.jsonl"
    rows = [("t.py::test_b", "passed", 9.0), ("t.py::test_c", "failed", 0.5)]
    keys = ("test", "result", "seconds")
    results.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    assert slow_tests.keep(results, SUITE) == 1
    known = slow_tests.kept()
    assert list(known) == SUITE
    assert known["t.py::test_a"].commit == "1234567"
    assert known["t.py::test_b"][:2] == ("passed", "9.0")
    assert known["t.py::test_b"].commit == slow_tests.commit()
    assert known["t.py::test_d"].result == "no record"
    assert slow_tests.stale(list(known)) == ["t.py::test_d", "t.py::test_a"]


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_stopped_with_its_programs(slow_tests, monkeypatch, tmp_path):
    marker = tmp_path / "here"
    (tmp_path / "t.py").write_text(
        "import subprocess, sys, time, pytest\n"
        "pytestmark = pytest.mark.slow\n"
        "def test_a(): pass\n"
        "def test_b():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({str(marker)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  merge:\n  slow:\n")
    monkeypatch.setattr(slow_tests, "ROOT", tmp_path)
    monkeypatch.setattr(slow_tests, "commit", lambda: "abc")
    monkeypatch.setattr(slow_tests, "MOST_SECONDS", 5)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.levels")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert slow_tests.run(SUITE[:2], SUITE) == 0
    known = slow_tests.kept()
    assert known["t.py::test_a"].result == "passed"
    assert known["t.py::test_b"].result == "stopped"
    assert not Path(f"/proc/{marker.read_text()}").exists()
