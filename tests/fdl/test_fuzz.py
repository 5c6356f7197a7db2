"""Damaged manifests end in an error message: never in a traceback, a hang or a full memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.manifest_mutations import MUTATIONS, damaged, projects

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*arguments, timeout):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz_manifests", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_some_damaged_projects_are_answered_with_errors():
    done = fuzz("--count", 50, timeout=250)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "50 (seeds 0 to 49)" in done.stdout
    assert "| findings | 0 |" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_damaged_projects_are_answered_with_errors(tmp_path):
    done = fuzz("--count", 10_000, "--keep", tmp_path, timeout=7000)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_seed_makes_the_same_files_again():
    originals = projects()
    for seed in range(20):
        assert damaged(seed, originals) == damaged(seed, projects())
    assert damaged(1, originals) != damaged(2, originals)


def test_every_kind_of_damage_is_done_to_every_kind_of_project():
    originals = projects()
    assert len(originals) >= 5
    assert all("fdl.yml" in files for files in originals)
    cases = [damaged(seed, originals) for seed in range(600)]
    assert {name for _, names in cases for name in names} == set(MUTATIONS)
    assert any("fdl.ci.yml" in files for files, _ in cases)
    assert any(b"inherit-from" in data for files, _ in cases for data in files.values())


def test_what_should_not_happen_is_found_and_kept(tmp_path, monkeypatch):
    from benchmarks import fuzz_manifests, fuzz_worker
    from benchmarks.measure import command_line, read_options

    (tmp_path / "fdl.yml").write_text("commands: {a: {run: x}}")
    case = fuzz_worker.Case(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def broken(argv, _):
        if argv == ["list"]:
            raise RecursionError("too deep")
        sys.stderr.write("error: something is wrong\n")
        return 1

    monkeypatch.setattr(fuzz_worker, "fdl", broken)
    assert case.type("list") is None
    assert case.type("config", "show") is None
    escaped, vague = case.record["findings"]
    assert escaped.startswith("`fdl list`: RecursionError: too deep")
    assert vague == "`fdl config show`: names no file: 'error: something is wrong\\n'"

    # A worker that answers nothing is a finding, and its input is kept.
    monkeypatch.setattr(fuzz_manifests, "HANG_SECONDS", 0)
    (outcome,) = fuzz_manifests.fuzz([7], workers=1, keep=tmp_path / "kept")
    assert outcome.findings == ["hangs: killed after 0 s"]
    assert (tmp_path / "kept" / "7").is_dir()
    options = read_options(command_line("fuzz_manifests", "Damage manifests."), ())
    assert "- seed 7: hangs" in fuzz_manifests.described(options, [outcome], 1.0)
