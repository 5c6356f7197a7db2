"""A program of a package, adopted as it is with a manifest of ten lines, and swept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"

MANIFEST = """\
description: Vectors of the words in my notes
entry: python -m gensim.scripts.word2vec_standalone
commands:
  vectors:
    options: {train: notes.txt, output: "${FDL_RUN_DIR:-.}/vectors.txt", min_count: 1, threads: 1}
sweeps:
  sizes: {command: vectors, each: {size: [5, 10, 20]}}
"""


@pytest.fixture
def reader(people, own_environment):
    """A person with some text and a package with a program that nobody wrote for fdl."""
    person = people(own_environment, PIP_CONSTRAINT=str(CONSTRAINTS))
    person.type("python -m pip install --quiet gensim", limit=600)
    person.type("python -c 'import this' > notes.txt")
    return person


def test_a_program_of_a_package_is_adopted_swept_and_compared(reader):
    assert len(MANIFEST.splitlines()) <= 10
    (reader.folder / "fdl.yml").write_text(MANIFEST)
    program = Path(reader.variables["VIRTUAL_ENV"]).glob(
        "lib/python*/site-packages/gensim/scripts/word2vec_standalone.py"
    )
    (before,) = [file.read_bytes() for file in program]
    assert b"argparse" in before
    assert b"fdl" not in before

    help_and_errors(reader)
    one_run(reader)
    sweep(reader)
    compare(reader)


def help_and_errors(reader):
    """The options have the types, defaults and texts that the program declares."""
    overview = reader.type("fdl --help").text
    assert re.search(r"^ +vectors ", overview, re.MULTILINE)
    page = " ".join(reader.type("fdl vectors --help all").text.split())
    for option in (
        "-size INT Set size of word vectors; default is 100 [default: 100]",
        "-window INT Set max skip length WINDOW between words; default is 5 [default: 5]",
        "[default: 1] [possible: 0, 1]",
    ):
        assert option in page
    assert re.search(r"-alpha FLOAT ", page)

    slip = reader.type("fdl vectors -cbow 2", exits=1).text
    assert "invalid value `2` for `-cbow` -- allowed: 0, 1" in slip
    # The program itself says what is not a number.
    slip = reader.type("fdl vectors -window two", exits=2).text
    assert "argument -window: invalid int value: 'two'" in slip
    slip = reader.type("fdl vectors -windw 2", exits=1).text
    assert "did you mean `-window`?" in slip


def one_run(reader):
    """Without a sweep, the file is where the person is."""
    done = reader.type("fdl vectors -size 3")
    assert "finished running word2vec_standalone.py" in done.text
    assert reader.type("head -1 vectors.txt").text.split()[1] == "3"


def sweep(reader):
    """Three runs, and each has its own vectors."""
    shown = reader.type("fdl --dry-run sweep run sizes").text
    assert len(re.findall(r"^size=\d+$", shown, re.MULTILINE)) == 3
    done = reader.type("fdl sweep run sizes")
    assert "3 of 3 runs done" in done.text
    first_lines = reader.type("head -qn 1 runs/vectors/sizes/*/vectors.txt").visible
    assert sorted(int(line.split()[1]) for line in first_lines) == [5, 10, 20]
    # The file of the run before is as it was.
    assert reader.type("head -1 vectors.txt").text.split()[1] == "3"


def compare(reader):
    """The runs are listed and compared with the value that differs."""
    listed = reader.type("fdl runs list").text
    # The run without a sweep is there, too.
    assert listed.count("complete") == 4
    ask = "fdl runs list --where 'size >= 10' --columns name,state,size --sort size"
    first, second, slip = (row.split() for row in reader.type(ask).text.splitlines()[1:])
    assert [first, second] == [["size=10", "complete", "10"], ["size=20", "complete", "20"]]
    # The run that failed has the program's default.
    assert slip[1:] == ["failed", "100"]
    text = reader.type("fdl runs compare size=5 size=10 size=20").text
    differing = text.partition("Configuration that differs:\n")[2]
    row = next(line for line in differing.splitlines() if line.startswith("size "))
    assert re.findall(r"\b(\d+)  --each", row) == ["5", "10", "20"]
