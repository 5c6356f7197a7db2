"""The index of acceptance cases is made from the tests, and is up to date."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_index_of_cases_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/cases.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
