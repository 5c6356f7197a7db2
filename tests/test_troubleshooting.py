"""The troubleshooting page: each error text is one that the program can print."""

import ast
import re
from functools import cache

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    """The error texts of a page: its headings in code."""
    found = re.findall(r"^### (`+)(.*?)\1$", page, re.MULTILINE)
    return [text.strip() for _, text in found]


@cache
def printed() -> str:
    """Every text of the program, one per line, with ``…`` for each value that is filled in."""
    texts = set()
    for package in ("fdl", "flodl"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                    texts.add(flat(pattern(node)))
    return "\n".join(texts)


def pattern(node: ast.expr) -> str:
    """The text of an expression: values that are filled in become ``…``."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(pattern(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return pattern(left) + pattern(right)
        case _:
            return "…"


def flat(text: str) -> str:
    return re.sub("…+", "…", " ".join(text.split()))


TEXTS = headings(PAGE)


def test_there_are_many_errors():
    assert len(TEXTS) >= 30
    assert len(set(TEXTS)) == len(TEXTS)
    assert len(TEXTS) == len(re.findall(r"^### ", PAGE, re.MULTILINE))


@pytest.mark.parametrize("text", TEXTS)
def test_the_program_can_print_this_error(text):
    assert flat(text) in printed()


def test_a_text_that_no_error_has_is_found():
    (text,) = headings("## A\n\n### ``the `loss` is … at epok …``\n")
    assert text == "the `loss` is … at epok …"
    assert flat(text) not in printed()


def test_a_value_that_is_filled_in_is_an_ellipsis():
    node = ast.parse("f'the {a!r} ' + f'is {b}{c}' + d", mode="eval").body
    assert flat(pattern(node)) == "the … is …"
