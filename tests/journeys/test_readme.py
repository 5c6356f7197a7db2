"""Somebody clones the repository and types the two commands of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.conftest import ROOT
from tests.test_readme import block

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = "tests/fdl/args"
"""Tests for the second command. Without arguments it runs all: a quarter of an hour or more."""


def test_the_two_commands_of_the_readme_in_a_clone(newcomer, figure):
    first, second = commands()
    newcomer.type(f"git clone --quiet {ROOT} flodl")
    newcomer.type("cd flodl")

    # No key is pressed: a question would wait until the limit.
    trained = newcomer.type(first, limit=900)
    figure("seconds of the first command", trained.seconds)
    figure("first command within 3 minutes", trained.seconds <= 180)
    assert "[Y/n]" not in trained.raw
    assert "[y/N]" not in trained.raw
    accuracy = re.search(r"^accuracy ([\d.]+)% on held-out digits$", trained.text, re.MULTILINE)
    assert accuracy is not None, trained.text
    assert float(accuracy[1]) > 95
    # Long paths are broken on the screen, and whole in what the terminal received.
    report = re.search(r"report +(/\S+/report\.html)", trained.raw)
    assert report is not None, trained.text
    assert "<html" in Path(report[1]).read_text(encoding="utf-8")

    tested = newcomer.type(f"{second} {SMALL}", limit=900)
    figure("seconds of the second command, with few tests", tested.seconds)
    assert re.search(r"\b\d{2,} passed", tested.text), tested.text
    assert "failed" not in tested.text

    again = [line.strip() for line in trained.raw.splitlines() if line.startswith("  ")][-3:]
    assert [line.split()[0] for line in again] == [".", "cd", "fdl"]
    for line in again:
        done = newcomer.type(line)
    assert "on held-out digits" in done.text
    assert newcomer.folder.name == "demo"
    assert len(list((newcomer.folder / "runs/train").iterdir())) == 2


def commands() -> list[str]:
    """The lines of the README below *Start*, without their comments."""
    return [line.partition("  #")[0] for line in block("bash", "quickstart").splitlines()]
