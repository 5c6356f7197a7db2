"""The Python of a project inside ``poetry run``, ``pixi run`` and a shell of conda."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fdl.base.venv import interpreter
from tests.fdl.programs import executable
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
FILES = {
    "fdl.yml": "commands:\n  which: {run: command -v python}\n  train: {path: train}\n",
    "train/fdl.yml": "entry: python main.py\n",
    "train/main.py": "import sys\nprint(sys.prefix)\n",
}
PYPROJECT = """
[project]
name = "demo"
version = "0.1.0"
requires-python = ">=3.11"

[tool.poetry]
package-mode = false
"""


def run(*words: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def surroundings(**more: str) -> dict[str, str]:
    """The variables of a shell in which nothing is activated."""
    names = ("VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX")
    return {**{name: text for name, text in os.environ.items() if name not in names}, **more}


# --- A tool that the package index has -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="could not import 'uv'")
def test_poetry_runs_the_python_of_the_environment_that_it_makes(project, tmp_path):
    """uv fetches poetry, and installs flodl where poetry says. It needs a package index."""
    environments = tmp_path / "environments"
    env = surroundings(
        UV_SYSTEM_CERTS="1",
        POETRY_VIRTUALENVS_PATH=str(environments),
        POETRY_VIRTUALENVS_IN_PROJECT="false",
    )
    folder = project({**FILES, "pyproject.toml": PYPROJECT})

    def poetry(*words: str) -> str:
        tool = ("uv", "tool", "run", "-q", "-p", sys.executable, "poetry")
        return run(*tool, *words, cwd=folder, env=env)

    poetry("install")
    prefix = Path(poetry("env", "info", "--path"))
    assert prefix.parent == environments
    run("uv", "pip", "install", "-q", "-p", str(prefix), str(ROOT), cwd=tmp_path, env=env)
    assert poetry("run", "fdl", "-q", "which") == str(prefix / "bin/python")
    assert poetry("run", "fdl", "-q", "train") == str(prefix)
    assert (folder / "poetry.lock").exists()


# --- Stand-ins for tools that are not on the package index: conda, pixi ------------------------


@pytest.fixture
def prefix(tmp_path):
    """An environment with the layout of conda: a whole Python, and no ``pyvenv.cfg``."""
    made = tmp_path / "envs/default"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = made / "lib" / version / "site-packages"
    for folder in (made / "bin", made / "conda-meta", packages):
        folder.mkdir(parents=True)
    for file in Path(sysconfig.get_path("stdlib")).iterdir():
        if file.name != "site-packages":
            (packages.parent / file.name).symlink_to(file)
    shutil.copy(os.path.realpath(sys.executable), made / "bin" / version)
    (made / "bin/python").symlink_to(version)
    (made / "conda-meta/history").touch()
    (packages / "flodl.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    script = made / "bin/fdl"
    script.write_text(f"#!{made}/bin/python\nfrom fdl.__main__ import main\nmain()\n")
    script.chmod(0o755)
    return made


def of_conda(prefix: Path) -> dict[str, str]:
    """What ``conda activate`` sets."""
    return {
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": prefix.name,
        "CONDA_PROMPT_MODIFIER": f"({prefix.name}) ",
        "CONDA_SHLVL": "1",
    }


def of_pixi(prefix: Path) -> dict[str, str]:
    """What ``pixi run`` sets."""
    root = str(prefix.parent.parent)
    return {
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": "demo",
        "PIXI_PROJECT_NAME": "demo",
        "PIXI_PROJECT_ROOT": root,
        "PIXI_PROJECT_MANIFEST": f"{root}/pixi.toml",
        "PIXI_PROJECT_VERSION": "0.1.0",
        "PIXI_ENVIRONMENT_NAME": "default",
        "PIXI_ENVIRONMENT_PLATFORMS": "linux-64",
        "PIXI_PROMPT": "(demo) ",
    }


@pytest.mark.parametrize("variables", [of_conda, of_pixi])
def test_an_environment_of_conda_runs_its_python(project, prefix, variables):
    folder = project(FILES)
    path = os.pathsep.join([str(prefix / "bin"), os.environ["PATH"]])
    env = surroundings(**variables(prefix), PATH=path)
    assert run("fdl", "-q", "which", cwd=folder, env=env) == str(prefix / "bin/python")
    assert run("fdl", "-q", "train", cwd=folder, env=env) == str(prefix)
    # Also where fdl itself is installed elsewhere, as by `uv tool install`.
    env["PYTHONPATH"] = str(ROOT)
    elsewhere = (sys.executable, "-m", "fdl", "-q", "train")
    assert run(*elsewhere, cwd=folder, env=env) == str(prefix)


@pytest.mark.parametrize("place", ["train/.venv", ".venv", "../.venv"])
def test_the_nearest_venv_of_a_command_runs_its_programs(project, light_fdl, place):
    files = {f"p/{name}": text for name, text in FILES.items()}
    folder = project(files) / "p"
    executable(folder / "../.venv/bin/python", "#!/bin/sh\necho far\n")
    own = executable(folder / place / "bin/python", "#!/bin/sh\necho near\n")
    assert light_fdl("-q", "train", cwd=folder).out == "near\n"
    if place != "train/.venv":
        assert light_fdl("-q", "which", cwd=folder).out == f"{os.path.realpath(own)}\n"


@each_row(("first", "second"), [("VIRTUAL_ENV", "CONDA_PREFIX"), ("CONDA_PREFIX", "VIRTUAL_ENV")])
def test_of_two_activated_environments_the_first_on_the_path_counts(tmp_path, first, second):
    """``pixi run`` in a shell with a virtual environment; a virtual environment in one of conda."""
    variables = {first: str(tmp_path / "one"), second: str(tmp_path / "two")}
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "bin/python").touch()
    folders = [str(tmp_path / name / "bin") for name in ("one", "two")]
    found = interpreter(str(tmp_path), {**variables, "PATH": os.pathsep.join(folders)})
    assert found == f"{folders[0]}/python"
