"""What ``scripts/sizes.py`` counts."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "sizes", Path(__file__).parent.parent / "scripts" / "sizes.py"
)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

SOURCE = '''"""A docstring."""

# A comment.
LIMIT = 3
"""What it limits."""


def twice(value):
    """Return it twice."""
    return [value, value]
'''


def test_only_code_counts():
    assert script.size(SOURCE) == (3, 3, 1, 1)


def test_a_file_counts_for_its_package_and_for_the_folder_below():
    found = script.sizes({"flodl/log.py": "x = 1", "flodl/nn/blur/a.py": SOURCE})
    assert found == {"flodl": (4, 4, 1, 2), "flodl/*.py": (1, 1, 0, 1), "flodl/nn": (3, 3, 1, 1)}


def test_a_table_shows_both_sizes_also_of_what_is_new_or_gone():
    before = script.sizes({"fdl/a.py": "x = 1"})
    after = script.sizes({"fdl/b/c.py": "x = 1\ny = 2"})
    assert list(script.table(before, after))[2:] == [
        "| fdl | 1 → 2 | 1 → 2 | 0 → 0 | 1 → 1 |",
        "| fdl/*.py | 1 → 0 | 1 → 0 | 0 → 0 | 1 → 0 |",
        "| fdl/b | 0 → 2 | 0 → 2 | 0 → 0 | 0 → 1 |",
    ]
    assert list(script.table({}, before))[2] == "| fdl | 1 | 1 | 0 | 1 |"
