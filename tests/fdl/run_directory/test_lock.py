"""The lock file of a project in the record of its runs, and the Python of other tools."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fdl.base.run_record import lock_file
from fdl.base.venv import interpreter

MANIFEST = {"fdl.yml": "commands: {go: {path: go}}", "go/fdl.yml": "entry: python main.py"}


def test_a_run_keeps_the_digest_of_the_nearest_lock_file(project, fdl):
    root = project({**MANIFEST, "go/main.py": "print('hello')", "uv.lock": "version = 1\n"})
    assert fdl("go").exit == 0
    (file,) = root.rglob("environment.json")
    digest = hashlib.sha256(b"version = 1\n").hexdigest()
    assert json.loads(file.read_text())["lock"] == {"file": "uv.lock", "sha256": digest}


def test_lock_files_are_looked_for_up_to_the_repository(tmp_path):
    inner = tmp_path / "repository/train"
    inner.mkdir(parents=True)
    (tmp_path / "uv.lock").write_text("not ours")
    (tmp_path / "repository/.git").mkdir()
    assert lock_file(str(inner)) is None
    (tmp_path / "repository/pixi.lock").write_text("ours")
    assert lock_file(str(inner))["file"] == "pixi.lock"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_is_the_one_of_the_project(tmp_path, variable):
    """``poetry run`` sets the first variable, ``pixi run`` and ``conda activate`` the second."""
    venv.create(tmp_path / "elsewhere")
    (tmp_path / "project").mkdir()
    found = interpreter(str(tmp_path / "project"), {variable: str(tmp_path / "elsewhere")})
    assert found == str(tmp_path / "elsewhere/bin/python")
    venv.create(tmp_path / "project/.venv")
    found = interpreter(str(tmp_path / "project"), {variable: str(tmp_path / "elsewhere")})
    assert found == str(tmp_path / "project/.venv/bin/python")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="could not import 'uv'")
def test_a_new_project_is_installed_and_run_by_uv(fdl, tmp_path):
    """torch is left out: it is larger than all else together. It needs a package index."""
    checkout = Path(__file__).parents[3]
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "UV_INDEX_URL"}
    environment = {
        **kept,
        "UV_FIND_LINKS": str(wheels),
        "UV_PYTHON": sys.executable,
        "UV_SYSTEM_CERTS": "1",
    }

    def uv(*words):
        done = subprocess.run(
            ["uv", *words], cwd=tmp_path / "demo", env=environment, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert fdl("init", "demo").exit == 0
    uv("build", "--wheel", "--quiet", "--out-dir", str(wheels), str(checkout))
    with (tmp_path / "demo/pyproject.toml").open("a") as file:
        file.write("\n[tool.uv]\noverride-dependencies = [\"torch; sys_platform == 'never'\"]\n")
    uv("sync")
    assert "python main.py --epochs 3" in uv("run", "fdl", "--dry-run", "train", "quick")
    uv("run", "fdl", "check")
    uv("run", "fdl", "lint")
    python = tmp_path / "demo/.venv/bin/python"
    with (tmp_path / "demo/fdl.yml").open("a") as file:
        file.write("  which: {run: command -v python}\n")
    assert uv("run", "fdl", "-q", "which").strip() == str(python)
