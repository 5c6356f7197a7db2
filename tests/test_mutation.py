"""What ``scripts/mutation.py`` changes, which tests it runs first, and what its page says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.rows import each_row

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))

from mutants import mutants, sample  # noqa: E402
from mutation import TARGETS  # noqa: E402
from mutation_runs import Covered, likely, reached  # noqa: E402


@pytest.fixture
def source(tmp_path):
    """Writes a file of a package; returns its path."""

    def write(text, name="code.py"):
        file = tmp_path / name
        file.write_text(dedent(text), encoding="utf-8")
        return file

    return write


def changes(file):
    return [(one.before, one.after) for one in mutants(file.parent, file)]


@each_row(
    ("text", "expected"),
    [
        ("a = b < c", [("b < c", "(b <= c)")]),
        ("a = b and c", [("b and c", "(b or c)")]),
        ("a = b + c", [("b + c", "(b - c)")]),
        ("a = 3", [("3", "4")]),
        ("a = True", [("True", "False")]),
        ("f(a)", [("f(a)", "pass")]),
        ("if a:\n    b", [("a", "(not (a))")]),
        ("def f():\n    return a", [("return a", "return None")]),
    ],
)
def test_one_thing_is_changed(source, text, expected):
    assert changes(source(text)) == expected


@each_row(
    "text",
    [
        '"""Text, 1 < 2."""',
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from a import b",
        "@dataclass(frozen=True)\nclass A:\n    b: Literal[1]",
        'a = f"{b + 1}"',
        "def f() -> None:\n    return None",
    ],
)
def test_what_no_test_can_notice_is_left_alone(source, text):
    assert changes(source(text)) == []


def test_only_the_place_changes_also_behind_other_alphabets(source):
    file = source('A = "größer"; b = 1\n')
    (one,) = mutants(file.parent, file)
    assert one.applied(file.read_bytes()).decode() == 'A = "größer"; b = 2\n'


def test_the_sample_stays_when_other_lines_change(source):
    text = "a = 1\nb = 2\nc = 3\nd = 4\n"
    file = source(text)
    before = sample(file.parent, [file], 2)
    source("first = second\n" + text)
    after = sample(file.parent, [file], 2)
    assert [one.key for one in after] == [one.key for one in before]
    assert [one.line for one in after] == [one.line + 1 for one in before]
    assert sample(file.parent, [file], 2, seed=2) != after


def test_tests_that_run_the_line_and_little_else_come_first(source):
    file = source("a = 1\n")
    (change,) = mutants(file.parent, file)
    covered = {
        "elsewhere": Covered(0.1, {"code.py": {7}}),
        "everything": Covered(0.1, {"code.py": {1, 2}, "other.py": {1, 2, 3}}),
        "this line": Covered(0.1, {"code.py": {1, 2}}),
    }
    assert likely(change, covered) == ["this line", "everything", "elsewhere"]
    assert likely(change, covered, before="elsewhere")[0] == "elsewhere"


def test_the_tests_that_come_first_are_short_together(source):
    file = source("a = 1\n")
    (change,) = mutants(file.parent, file)
    covered = {str(number): Covered(4.0, {"code.py": {1}}) for number in range(9)}
    assert len(likely(change, covered)) == 2


def test_processes_that_are_killed_make_a_test_unsure(source):
    file = source("a = 1\n")
    (change,) = mutants(file.parent, file)
    elsewhere, unsure = Covered(1.0, {"code.py": {7}}), Covered(1.0, unsure=True)
    covered = {"a::x": Covered(9.5, {"code.py": {1}}), "b::y": elsewhere, "c::z": unsure}
    first = likely(change, covered)
    assert first == ["a::x"]
    assert reached(first, change, covered) == ["a::x", "c::z"]


@pytest.fixture
def checkout(tmp_path):
    """A small project with the program; returns a function that runs it on ``fdl/manifest``."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in ("mutation.py", "mutation_runs.py", "mutants.py", "line_trace.py"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    for name in ("docs/design", "fdl/manifest", "tests/fdl/manifest", "tests/records"):
        (folder / name).mkdir(parents=True)
    for name in ("tests/merge_list.py", "tests/records/merge_tests.txt"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("fdl/__init__.py", *TARGETS["manifest"].tests[1:]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "fdl/manifest/sizes.py").write_text("def fits(a, b):\n    return a <= b\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    tests = folder / "tests/fdl/manifest/test_sizes.py"

    def run(test, *words):
        tests.write_text("from fdl.manifest.sizes import fits\n" + dedent(test))
        env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": ""}
        done = subprocess.run(
            [sys.executable, "scripts/mutation.py", "manifest", *words],
            cwd=folder, env=env, capture_output=True, text=True,
        )  # fmt: skip
        record = folder / "tests/records/mutation.json"
        found = json.loads(record.read_text())["manifest"] if record.exists() else {}
        return done, {one["before"]: one["noticed_by"] for one in found.values()}

    run.folder = folder
    return run


NARROW = """
    import subprocess, sys
    def test_child():
        program = "from fdl.manifest.sizes import fits; assert fits(1, 2)"
        subprocess.run([sys.executable, "-c", program], check=True)
    """
COMPLETE = "def test_same():\n    assert fits(2, 2)\n"


@pytest.mark.slow
def test_survivors_run_again_after_a_new_test(checkout):
    done, noticed = checkout(NARROW)
    assert done.returncode == 0, done.stderr
    here = "tests/fdl/manifest/test_sizes.py"
    assert noticed == {"a <= b": "", "return a <= b": f"{here}::test_child"}
    assert "fdl/manifest/sizes.py:2: a <= b -> (a < b): NOT NOTICED" in done.stdout
    page = (checkout.folder / "tests/records/mutation.md").read_text()
    assert "| `fdl/manifest/sizes.py:2` | `a <= b` → `(a < b)` | not read yet |" in page

    done, noticed = checkout("", "--left", "--by", here)
    assert "NOT NOTICED" in done.stdout
    assert noticed["return a <= b"] == f"{here}::test_child"

    done, noticed = checkout(COMPLETE, "--survivors", "--by", here)
    assert done.stdout == f"fdl/manifest/sizes.py:2: a <= b -> (a < b): {here}::test_same\n"
    assert noticed["return a <= b"] == f"{here}::test_child"

    done, noticed = checkout(COMPLETE, "--left", "--quick")
    assert done.stdout.startswith("fdl/manifest/sizes.py:2: return a <= b -> return None: ")
    assert set(noticed.values()) == {f"{here}::test_same"}


@pytest.mark.slow
def test_a_test_that_fails_by_chance_notices_nothing(checkout, tmp_path):
    done, noticed = checkout(f"""
        from pathlib import Path
        def test_once():
            Path({str(tmp_path / "once")!r}).touch(exist_ok=False)
        """)
    assert done.returncode == 0, done.stderr
    assert set(noticed.values()) == {""}


@pytest.mark.slow
def test_tests_that_fail_without_a_change_are_an_error(checkout):
    done, noticed = checkout("def test_sizes():\n    assert fits(2, 1)\n")
    assert done.returncode == 1
    assert "error: tests/fdl/manifest/test_sizes.py fails without any change" in done.stderr
    assert noticed == {}
