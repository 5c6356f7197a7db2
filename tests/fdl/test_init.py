"""``fdl init``: all of a project, or nothing of it."""

import os
import stat
import subprocess
import sys

import pytest

EXPECTED = [
    ".gitignore",
    "README.md",
    "fdl.yml.example",
    "pyproject.toml",
    "tests/test_train.py",
    "train/fdl.yml",
    "train/main.py",
]


def tree(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_init_writes_a_complete_native_project(fdl, tmp_path):
    done = fdl("init", "my-model_2", "--native")
    assert (done.exit, done.out.splitlines()[0]) == (0, "Created my-model_2/ with 7 files:")
    assert "cd my-model_2" in done.out
    made = tmp_path / "my-model_2"
    assert tree(made) == EXPECTED
    assert 'name = "my-model_2"' in (made / "pyproject.toml").read_text()
    assert "description: my-model_2" in (made / "fdl.yml.example").read_text()
    assert "docker" not in "".join((made / name).read_text() for name in EXPECTED).lower()
    assert len((made / "train/main.py").read_text().splitlines()) < 80
    assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_development_version_pins_nothing_and_says_so(fdl, tmp_path):
    done = fdl("init", "demo", "--native")
    assert "development version, so nothing is pinned" in done.err
    assert 'dependencies = ["flodl[train]"]' in (tmp_path / "demo/pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["a b", "", "ü", "a/b", "..", "a.b"])
def test_a_name_that_is_no_name_is_refused_and_nothing_written(fdl, tmp_path, name):
    done = fdl("init", name, "--native")
    assert done.exit == 1
    assert done.err.startswith(f"error: `{name}` is no project name: use letters, digits")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_refused_and_left_alone(fdl, project, tmp_path):
    project({"demo/keep.txt": "mine\n"})
    done = fdl("init", "demo", "--native")
    assert done.exit == 1
    assert f"error: {tmp_path / 'demo'} exists already; nothing was written" in done.err
    assert tree(tmp_path) == ["demo/keep.txt"]


def test_a_dangling_link_is_an_existing_target_too(fdl, tmp_path):
    (tmp_path / "demo").symlink_to(tmp_path / "nowhere")
    assert fdl("init", "demo", "--native").exit == 1
    assert (tmp_path / "demo").readlink() == tmp_path / "nowhere"


def test_without_a_mode_init_says_what_to_type(fdl, tmp_path):
    done = fdl("init", "demo")
    assert done.exit == 1
    assert "fdl init demo --native" in done.err
    assert list(tmp_path.iterdir()) == []


def test_missing_and_surplus_arguments_exit_with_2(fdl, tmp_path):
    assert fdl("init", "--native").exit == 2
    assert fdl("init", "a", "b", "--native").exit == 2
    assert fdl("init", "a", "--nativ").exit == 2
    assert list(tmp_path.iterdir()) == []


def test_the_scaffold_lists_its_commands_and_shows_what_training_would_run(fdl):
    fdl("init", "demo", "--native")
    page = fdl("--help", cwd="demo")
    assert page.exit == 0
    for name in ("train", "test", "build", "lint", "check"):
        assert f"\n    {name} " in page.out or f"\n  {name} " in page.out
    plan = fdl("--dry-run", "train", "quick", "--lr", "0.01", cwd="demo")
    assert plan.exit == 0
    assert "python main.py --epochs" in plan.out
    assert "train/fdl.yml:" in plan.out


def test_the_scaffolds_own_test_passes(fdl, tmp_path):
    fdl("init", "demo", "--native")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "demo",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
