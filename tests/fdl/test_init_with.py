"""``fdl init --with``: files for CI, hooks and containers, each executed as far as it goes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

WORKFLOW, HOOKS, CONTAINER = (
    ".github/workflows/check.yml", ".pre-commit-config.yaml", ".devcontainer/devcontainer.json",
)  # fmt: skip


@pytest.fixture
def demo(fdl, tmp_path):
    """A new project with all files."""
    assert fdl("init", "demo", "--with", "actions,pre-commit,devcontainer").exit == 0
    return tmp_path / "demo"


def typed(line, folder):
    """The exit code of a line of a shell, and what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", line], cwd=folder, env={**os.environ, "PATH": path, "CI": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def steps(folder):
    """Name of a step of the workflow -> its script."""
    (job,) = yaml.safe_load((folder / WORKFLOW).read_text())["jobs"].values()
    return {one["name"]: one["run"] for one in job["steps"] if "run" in one}


def hooks(folder):
    (repository,) = yaml.safe_load((folder / HOOKS).read_text())["repos"]
    return {one["id"]: one["entry"] for one in repository["hooks"]}


def test_only_what_is_named_is_added(fdl, tmp_path):
    assert fdl("init", "bare").exit == 0
    assert fdl("init", "demo", "--with", "actions").exit == 0
    bare, demo = (
        {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
        for folder in (tmp_path / "bare", tmp_path / "demo")
    )
    assert demo - bare == {WORKFLOW}
    shown = fdl("init", "other", "--with", "pre-commit, devcontainer", "-n").out
    assert f"  other/{HOOKS}\n" in shown
    assert f"  other/{CONTAINER}\n" in shown
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--with", "action"), "did you mean `actions`"),
        (("--with", "actions", "--docker"), "leave out --docker"),
    ],
)
def test_what_cannot_be_added_is_refused(fdl, tmp_path, words, problem):
    refused = fdl("init", "demo", *words)
    assert refused.exit == 1
    assert problem in refused.err
    assert list(tmp_path.iterdir()) == []


def test_the_checks_pass_in_a_new_project_and_find_a_wrong_option(demo):
    wanted = [steps(demo)["check the manifests"], hooks(demo)["fdl-check"]]
    container = json.loads((demo / CONTAINER).read_text())["postCreateCommand"]
    assert container.endswith(f" && {wanted[0]}")
    assert set(wanted) == {"fdl check"}
    assert typed(wanted[0], demo)[0] == 0
    manifest = demo / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("options: {}", "options: {lrr: 1}"))
    code, said = typed(wanted[0], demo)
    assert code != 0
    assert "lrr" in said


@pytest.mark.slow
def test_every_step_of_the_action_runs_in_a_shell(demo):
    scripts = steps(demo)
    assert "pip install" in scripts.pop("install"), "the only step that needs a package index"
    assert hooks(demo)["fdl-lint"] == scripts["lint"]
    for name, script in scripts.items():
        code, said = typed(script, demo)
        assert code == 0, (name, said)
    assert list((demo / "runs/quick").iterdir())


@pytest.mark.slow
def test_the_devcontainer_installs_the_project(demo):
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], check=False).returncode:
        pytest.skip("no Docker daemon runs here")
    about = json.loads((demo / CONTAINER).read_text())
    command = ["docker", "run", "--rm", "-v", f"{demo}:/w", "-w", "/w", about["image"], "sh", "-ec"]
    subprocess.run([*command, about["postCreateCommand"]], check=True)
