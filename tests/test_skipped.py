"""A reason to skip that nobody has allowed fails a run of CI, and no other run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import NO_PLUGINS

ROOT = Path(__file__).resolve().parents[1]


def run(tmp_path, reason, ci):
    (tmp_path / "test_one.py").write_text(
        f"import pytest\ndef test_a():\n    pytest.skip({reason!r})\ndef test_b():\n    pass\n"
    )
    words = ["-q", "-p", "tests.skipped", "-c", os.devnull, "test_one.py"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": ci, **NO_PLUGINS},
        capture_output=True,
        text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [("needs a CUDA device", "1", 0), ("no time", "1", 1), ("no time", "", 0)],
)
def test_a_new_reason_fails_where_ci_is_set(tmp_path, reason, ci, code):
    done = run(tmp_path, reason, ci)
    assert done.returncode == code, done.stdout
    assert ("1 tests skipped for 1 reasons" in done.stdout) is bool(ci)
    assert ("error: a new reason to skip: no time" in done.stdout) is bool(code)
    assert done.stdout.splitlines()[-1].startswith("1 passed, 1 skipped")
