"""What happens where PyTorch is not installed, or cannot be loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SENTENCE = "flodl needs PyTorch, which is not installed; type: pip install 'flodl[train]'"
MISSING = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"


@pytest.fixture
def python(project, tmp_path):
    """Run a program whose torch consists of these lines."""

    def run(*words, torch=MISSING, cwd=tmp_path):
        project({"instead/torch/__init__.py": torch})
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PYTHONPATH": str(tmp_path / "instead"), "PATH": path}
        return subprocess.run(
            [sys.executable, *words], cwd=cwd, env=variables, capture_output=True, text=True
        )

    return run


@pytest.mark.parametrize("line", ["import flodl", "from flodl import Trainer", "import flodl.nn"])
def test_an_import_ends_the_program_with_one_line(python, line):
    done = python("-c", line)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {SENTENCE}\n")


def test_a_program_can_catch_it_and_other_errors_keep_their_traceback(python):
    done = python(
        "-c", "try: import flodl\nexcept ImportError as e: print(e.name, e)\nraise ValueError('x')"
    )
    assert done.stdout == f"torch {SENTENCE}\n"
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ValueError: x\n")


@pytest.mark.parametrize(
    "problem",
    [
        "raise ImportError('libcudart.so.12: cannot open shared object file')",
        "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')",
    ],
)
def test_a_torch_that_cannot_be_loaded_keeps_its_own_error(python, problem):
    done = python("-c", "import flodl", torch=problem)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "is not installed" not in done.stderr


def test_a_new_project_says_it_in_one_line(python, tmp_path):
    fdl = ("-m", "fdl", "-q")
    assert python(*fdl, "init", "demo", "--native").returncode == 0
    done = python(*fdl, "train", cwd=tmp_path / "demo")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {SENTENCE}\n")
