"""The reference of commands is made from the commands, and is up to date."""

import subprocess
import sys
from pathlib import Path

from fdl.commands.registry import REGISTRY

ROOT = Path(__file__).parent.parent


def test_the_reference_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/reference.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_has_a_section():
    headings = [
        line.lstrip("# ")
        for line in (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("##")
    ]
    expected = [
        f"fdl {name}" if child is None else f"fdl {name} {child}"
        for name, builtin in REGISTRY.items()
        for child in (None, *builtin.children)
    ]
    assert headings == [*expected, "Exit codes"]
