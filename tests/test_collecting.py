"""Every process that runs tests collects all of them, so collecting is kept short."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.later import IMPORTED

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
RARE = {
    "anyio.pytest_plugin", "datasets", "hydra", "lightning", "mlflow", "onnx", "peft",
    "pytorch_lightning", "sentence_transformers", "tensorboard", "transformers", "typeguard",
    "wandb",
}  # fmt: skip


def test_collecting_imports_no_library_that_few_tests_use():
    assert "tests.test_collecting" in IMPORTED
    assert sorted(RARE & IMPORTED) == []


@pytest.mark.parametrize("package", ["tests", "benchmarks"])
def test_what_is_compiled_is_kept_also_where_python_is_told_to_keep_nothing(package):
    program = f"import sys, os, {package}; print(sys.dont_write_bytecode, *os.environ)"
    told = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", program]
    found = subprocess.check_output(words, cwd=ROOT, env=told, text=True).split()
    assert found[0] == "False"
    assert "PYTHONDONTWRITEBYTECODE" not in found


def test_no_file_of_tests_lies_where_pytest_never_looks(pytestconfig: pytest.Config) -> None:
    """By default pytest enters no folder named build, dist or venv, and says nothing."""
    never = pytestconfig.getini("norecursedirs")
    unseen = [
        str(file)
        for file in TESTS.rglob("test_*.py")
        if any(fnmatch(part, one) for part in file.relative_to(TESTS).parts[:-1] for one in never)
    ]
    assert unseen == []
