"""README, docs, help texts, errors, templates and docstrings keep to plain English.

``plain_english.txt`` has the files that do not yet, with the number of places. It can only get
shorter: mend some, then

    LOWER_PLAIN_ENGLISH=1 pytest tests/test_plain_english.py
"""

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests import plain_english
from tests.plain_english import ROOT, Text, faults, sentences, texts
from tests.rows import each_row

ALLOWED = Path(__file__).parent / "plain_english.txt"
GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")


def allowed() -> dict[str, int]:
    rows = (line.split() for line in ALLOWED.read_text(encoding="utf-8").splitlines())
    return {file: int(number) for number, file in rows}


@cache
def found() -> dict[str, list[plain_english.Finding]]:
    return {
        file.relative_to(ROOT).as_posix(): plain_english.findings(file)
        for file in plain_english.files()
    }


def test_every_text_is_plain():
    before, now = allowed(), Counter({file: len(places) for file, places in found().items()})
    worse = [
        str(place)
        for file, places in found().items()
        if len(places) > before.get(file, 0)
        for place in places
    ]
    assert not worse, "\n".join(worse)
    if os.environ.get("LOWER_PLAIN_ENGLISH") == "1":
        rows = [f"{now[file]} {file}\n" for file in sorted(before) if now[file]]
        ALLOWED.write_text("".join(rows), encoding="utf-8")
    assert allowed() == {file: now[file] for file in before if now[file]}, (
        "some places were mended: LOWER_PLAIN_ENGLISH=1 pytest tests/test_plain_english.py"
    )


@each_row(
    "riddle",
    [
        "The archive is no zip archive.",
        "It is never there by halves.",
        "what answers there is not a Hub",
        "Whoever reads it is told.",
        "a fast card waits for a slow one",
        "node reads the tag 'x', which nobody has",
        "it carries values of graphs that the model has not",
        "The words go to the entry as they stand.",
        "Nothing is started but the prediction.",
        "Nothing but a restart helps.",
        "There is no room for it.",
        "It leaves a trail.",
        "it finds out",
        "Look after what fdl knows about the arguments of programs",
        "The closer to the keyboard, the stronger",
        "Here a callback stands for the finger on the key",
        "All that is given has to apply.",
        "loops of one's own",
        "Every sub-command of it is listed.",
        "One word " * 15 + "and another.",
    ],
)
def test_a_riddle_is_found(riddle):
    assert list(faults(Text(1, riddle)))


@each_row(
    "plain",
    [
        "The file is not a zip archive.",
        "There is no run in this folder.",
        "The process is no longer running.",
        "The wall time of an epoch.",
        "The model card of the Hub.",
        "Download one variant without choosing automatically",
        "`card` and `is no word` are names in code",
        "no node has the tag 'x' (used by node `merge_3`)",
        "One word, and " * 5 + "a stop. " + "One word, and " * 5 + "a stop.",
    ],
)
def test_a_plain_sentence_passes(plain):
    assert not list(faults(Text(1, plain)))


def test_code_ends_no_sentence_and_counts_as_one_word():
    assert sentences(Text(1, "Type `fdl a. b`. Then wait.")) == ["Type `fdl a. b`.", "Then wait."]
    assert not list(faults(Text(1, "Type `" + "a " * 40 + "`.")))


def test_the_parts_of_an_error_are_sentences():
    long = "word " * 20
    assert not list(faults(Text(1, f"{long}; {long}", parts=True)))
    assert list(faults(Text(1, f"{long}; {long}")))


PROGRAM = '''
"""First. The card is mine.

Args:
    one: Whoever asks.
    two: Fine.

    >>> card = whoever
"""


def public():
    """A house."""
    raise ValueError(f"{1} is no {2}, " + "by halves", hint="a card")


def _private():
    """A house."""
    help(option(help="Whoever" if 1 else "a trail in it"))
'''

PAGE = """\
# The card

A page about
cards.

    card in code

- whoever
  comes | [card](card.md)

| cell | house |
|---|---|

```console
$ card
```
"""


def problems(folder: Path, name: str, content: str) -> list[tuple[int, str]]:
    (folder / name).write_text(content)
    return [
        (text.line, re.findall(r"`(.*?)`", problem)[0])
        for text in texts(folder / name)
        for problem, _ in faults(text)
    ]


def test_docstrings_messages_and_help_are_read(tmp_path):
    assert sorted(problems(tmp_path, "program.py", PROGRAM)) == [
        (2, "card"),
        (5, "Whoever"),
        (13, "house"),
        (14, "by halves"),
        (14, "card"),
        (14, "is no …"),
        (19, "trail"),
    ]


def test_paragraphs_items_headings_and_cells_are_read(tmp_path):
    assert problems(tmp_path, "page.md", PAGE) == [
        (1, "card"),
        (3, "cards"),
        (8, "whoever"),
        (8, "card"),
        (11, "house"),
    ]


def test_comments_and_descriptions_of_a_template_are_read(tmp_path):
    manifest = "{% if x %}\n# Whoever {{ x }}\n# reads.\ndescription: A card\nrun: card\n"
    assert problems(tmp_path, "fdl.yml.j2", manifest) == [(2, "Whoever"), (4, "card")]


def test_the_glossary_explains_each_word_once():
    words = re.findall(r"^\| ([^|]+?) \|", GLOSSARY, re.MULTILINE)
    words = [word for word in words if word not in ("Word", "---")]
    assert [word for word, times in Counter(words).items() if times > 1] == []
    assert {"command", "entry", "preset", "overlay", "run", "rank", "step", "GPU"} <= set(words)
