"""The reference: what is made from the code is up to date, the rest is true where it can be run."""

import contextlib
import dataclasses
import io
import re
import subprocess
import sys
from pathlib import Path

from fdl.cli.builtin_table import TABLE
from flodl import DdpRunConfig, EventKind
from tests.test_guides import LINK, fits
from tests.test_tutorials import steps

ROOT = Path(__file__).parent.parent
RANKS = ROOT / "docs/reference/distributed.md"


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
    assert headings == [*(f"fdl {name}" for name in TABLE), "Exit codes"]


def test_the_examples_of_the_ranks_page_print_what_it_shows():
    ran = 0
    for line, block, promised in steps(RANKS.read_text(encoding="utf-8")):
        seen = io.StringIO()
        code = compile("\n" * line + block, str(RANKS), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(seen):
            exec(code, {"__name__": "reference"})
        assert fits(promised, seen.getvalue().splitlines()), f"{line + 1}\n{seen.getvalue()}"
        ran += 1
    assert ran >= 3


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of the ranks page, without its own heading."""
    page = RANKS.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    table = re.search(r"^\|.*?\n(?=\n)", page, re.DOTALL | re.MULTILINE)
    assert table is not None, heading
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_ranks_page_has_every_setting_with_its_default():
    found = {row[0].strip("`"): row[1].strip("`") for row in rows("Settings")}
    expected = {one.name: str(one.default) for one in dataclasses.fields(DdpRunConfig)}
    assert found == expected


def test_the_ranks_page_knows_the_environment_variables():
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("flodl/ranks", "flodl/train")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    named = {row[0].strip("`") for row in rows("Environment variables")}
    assert named == set(re.findall(r'_VARIABLE = "(FLODL_\w+)"', source))


def test_the_ranks_page_names_events_that_exist():
    named = {name for row in rows("Metrics and events") for name in re.findall(r"\w+", row[0])}
    assert named <= {kind.value for kind in EventKind}
    assert {"plan", "wait", "guard", "skip"} <= named


def test_every_link_of_the_ranks_page_leads_somewhere():
    targets = LINK.findall(RANKS.read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        assert (RANKS.parent / target).exists(), target
