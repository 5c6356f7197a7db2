"""The test of the project."""

import unittest
from pathlib import Path


class Raw(unittest.TestCase):
    """The raw data."""

    def test_it_has_rows(self) -> None:
        """An empty file would train nothing."""
        assert Path("raw.csv").read_text().strip()


if __name__ == "__main__":
    unittest.main()
