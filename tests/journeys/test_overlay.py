"""Somebody writes an overlay for CI with a slip, and corrects it with the message alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.person import Person

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PLACE = r"(?P<file>\S+):(?P<line>\d+):(?P<column>\d+)"
ERROR = re.compile(
    rf"error: {PLACE}: unknown key `(?P<wrong>[^`]+)`; did you mean `(?P<right>[^`]+)`\?"
)
WARNING = re.compile(
    rf"warning: {PLACE}: the command `(?P<wrong>[^`]+)` is new and has no description; "
    r"did you mean `(?P<right>[^`]+)`\?"
)

OVERLAY = """\
# One epoch shows that it works.
training:
  epochs: 1
commands:
  quick:
    training:
      epochs: 1
"""


@pytest.fixture
def project(person: Person) -> Path:
    """A new project with an overlay for CI, in which the person is now."""
    person.type("fdl init demo")
    person.type("cd demo")
    # The environment of the project. The one of the program stands beside its manifest.
    (person.folder / "fdl.ci.yml").write_text("# Nothing else is different in CI.\n")
    (person.folder / "train/fdl.ci.yml").write_text(OVERLAY)
    return person.folder


@pytest.mark.parametrize(
    ("right", "wrong", "command"),
    [
        ("training:\n  epochs", "trainig:\n  epochs", "train"),
        ("  epochs: 1\ncommands", "  epoch: 1\ncommands", "train"),
        ("    training", "    traning", "train quick"),
        ("commands", "command", "train quick"),
    ],
    ids=["section", "setting", "section of a preset", "commands"],
)
def test_a_key_is_corrected_with_the_message_alone(person: Person, project, right, wrong, command):
    slip(project, right, wrong)
    failed = person.run(f"fdl --env ci {command}", exits=1)
    assert failed.out == ""
    assert not (project / "runs").exists()
    message = ERROR.search(failed.err)
    assert message is not None, failed.err
    correct(project, message)
    works(person, command)


def test_the_name_of_a_preset_is_corrected_with_the_message_alone(person: Person, project):
    slip(project, "  quick:", "  quik:")
    # A preset that only CI has is allowed: this trains, for the three epochs of the manifest.
    warned = person.run("fdl --env ci train quick")
    assert "epoch 3/3" in warned.out + warned.err
    message = WARNING.search(warned.err)
    assert message is not None, warned.err
    correct(project, message)
    works(person, "train quick")


def slip(project: Path, right: str, wrong: str) -> None:
    file = project / "train/fdl.ci.yml"
    assert OVERLAY.count(right) == 1
    file.write_text(OVERLAY.replace(right, wrong))


def correct(project: Path, message: re.Match[str]) -> None:
    """Write the suggested name over the wrong one, at the file, line and column of the message."""
    file = project / message["file"]
    lines = file.read_text().splitlines(keepends=True)
    number, column = int(message["line"]) - 1, int(message["column"]) - 1
    wrong = message["wrong"].rpartition(".")[2]
    before, after = lines[number][:column], lines[number][column:]
    assert after.startswith(wrong), f"{lines[number]!r} at {column}"
    lines[number] = before + message["right"] + after.removeprefix(wrong)
    file.write_text("".join(lines))
    assert file.read_text() == OVERLAY


def works(person: Person, command: str) -> None:
    trained = person.run(f"fdl --env ci {command}")
    assert "epoch 1/1" in trained.out + trained.err
    assert "on held-out digits" in trained.out
    assert "warning" not in trained.err
    why = person.type(f"fdl --env ci why training.epochs {command}").text
    assert re.search(r"wins +1 +train/fdl\.ci\.yml:\d:\d", why), why
