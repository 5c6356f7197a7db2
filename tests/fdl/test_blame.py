"""A wrong value is blamed where it stands: on the command line, or at a place of a manifest."""

from __future__ import annotations

import re

import pytest

FILES = {
    "fdl.yml": """
        commands:
          train:
          say: {run: "echo $n", args: {n: {type: int, default: 1}}}
        """,
    "train/fdl.yml": """
        entry: python main.py
        schema:
          strict: true
          options:
            epochs: {type: int}
            model: {type: string, choices: [small, big]}
        commands:
          wrong: {options: {model: huge}}
          typo: {options: {modl: big}}
        """,
    "train/main.py": "print('ran')\n",
}
PLACE = re.compile(r"fdl\.yml:\d+:\d+")


@pytest.fixture
def broken(project):
    return project(FILES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --model huge", "invalid value `huge` for `--model`"),
        ("train --modl big", "unknown option `--modl`"),
        ("say --n x", "invalid value `x` for `--n`"),
        ("say --m 1", "unknown option `--m`"),
        ("train --ranks x", "--ranks takes `auto` or a whole number from 1, not `x`"),
        ("train --each model=huge", "invalid value `huge` for `--model`"),
    ],
)
@pytest.mark.usefixtures("broken")
def test_what_was_typed_is_blamed_without_a_place(fdl, words, said):
    done = fdl(*words.split())
    assert done.exit != 0
    assert said in done.err
    assert not PLACE.search(done.err)
    assert "ran" not in done.out


@pytest.mark.parametrize(
    ("words", "place", "said"),
    [
        ("train wrong", "train/fdl.yml:8:28", "invalid value `huge` for `--model`"),
        ("train typo", "train/fdl.yml:9:26", "the program has no option `modl`"),
        ("train typo --epochs 2", "train/fdl.yml:9:26", "the program has no option `modl`"),
    ],
)
@pytest.mark.usefixtures("broken")
def test_what_a_manifest_says_is_blamed_with_its_place(fdl, words, place, said):
    done = fdl(*words.split())
    assert done.exit == 1
    assert f"error: {place}: " in done.err
    assert said in done.err
    assert "ran" not in done.out
