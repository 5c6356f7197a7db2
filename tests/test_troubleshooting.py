"""The troubleshooting page: each error text is one that the program can print."""

import re
from functools import cache

from tests.pages import ROOT
from tests.rows import each_row

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    """The error texts of a page: its headings in code."""
    found = re.findall(r"^### (`+)(.*?)\1$", page, re.MULTILINE)
    return [text.strip() for _, text in found]


@cache
def printed() -> str:
    """Every text of the program, with ``…`` for each value that is filled in."""
    files = [file for folder in ("fdl", "flodl") for file in (ROOT / folder).rglob("*.py")]
    return flat("\n".join(pattern(file.read_text(encoding="utf-8")) for file in files))


def pattern(source: str) -> str:
    """A source with neighbouring texts joined, and each value in braces as ``…``."""
    joined = re.sub(r"([\"'])\s*\n\s*f?\1", "", source)
    return re.sub(r"\{[^{}\n]*\}", "…", joined.replace('\\"', '"').replace("{{", "{"))


def flat(text: str) -> str:
    return re.sub("…+", "…", " ".join(text.split()))


TEXTS = headings(PAGE)


def test_there_are_many_errors():
    assert len(TEXTS) >= 30
    assert len(set(TEXTS)) == len(TEXTS)
    assert len(TEXTS) == len(re.findall(r"^### ", PAGE, re.MULTILINE))


@each_row("text", TEXTS)
def test_the_program_can_print_this_error(text):
    assert flat(text) in printed()


def test_a_text_that_no_error_has_is_found():
    (text,) = headings("## A\n\n### ``the `loss` is … at epok …``\n")
    assert text == "the `loss` is … at epok …"
    assert flat(text) not in printed()


def test_texts_over_several_lines_are_one():
    source = 'raise E(\n    f"the {a!r} is {b}{c} "\n    "and \\"d\\" stays"\n)'
    assert 'the … is … and "d" stays' in flat(pattern(source))
