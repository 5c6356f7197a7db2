"""The questions of CONTRIBUTING.md lead to files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_answer_is_a_file():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Where would you change it?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([^|]+) \|", table, re.MULTILINE)
    assert len(rows) == 16
    for folder, answer in rows:
        for name in re.findall(r"`([^`]+)`", answer):
            assert (ROOT / folder / name).is_file(), f"{folder}{name}"
