"""What ``scripts/statements.py`` counts."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "statements", Path(__file__).parent.parent / "scripts" / "statements.py"
)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

SOURCE = '''"""A docstring."""

LIMIT = 3
"""What it limits."""


def twice(value):
    """Return it twice."""
    return [value, value]
'''


def test_docstrings_are_not_statements():
    assert script.statements(SOURCE) == 3


def test_a_file_counts_for_its_package_and_for_the_folder_below():
    counts = script.count({"flodl/log.py": "x = 1", "flodl/nn/blur/a.py": SOURCE})
    assert counts == {"flodl": 4, "flodl/*.py": 1, "flodl/nn": 3}
