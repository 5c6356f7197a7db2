"""The documentation site: links, order of pages, the first commands."""

import importlib
import re

import pytest

from tests import pages
from tests.pages import ROOT
from tests.rows import each_row
from tests.test_guides import sessions, typed

DOCS = ROOT / "docs"
FOLDERS = [path for path in sorted(DOCS.iterdir()) if (path / "README.md").exists()]
CONSOLE = re.compile(r"^```console[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_every_link_and_anchor_leads_somewhere():
    assert [fault for page in pages.pages() for fault in pages.broken(page)] == []


@each_row(
    ("page", "faults"),
    [
        ("[a](b.md) [c](a.md#two-words) [d](#two-words-1)\n# Two `words`!\n## Two words\n", []),
        ("[a](c.md)", ["a.md:1: c.md"]),
        ("\n[a](b.md#no)\n", ["a.md:2: b.md#no"]),
        ("# One\n[a](#two)", ["a.md:2: #two"]),
        (
            "![a](no.png) `[a](c.md)`\n\n```text\n[a](c.md)\n```\n[x](https://a.b)",
            ["a.md:1: no.png"],
        ),
    ],
)
def test_a_broken_link_is_found(tmp_path, monkeypatch, page, faults):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# B\n")
    (tmp_path / "a.md").write_text(page)
    assert list(pages.broken(tmp_path / "a.md")) == faults


def test_the_site_has_all_that_its_pages_link_to():
    outside = importlib.import_module("scripts.docs_hooks").OUTSIDE
    site = {*DOCS.rglob("*"), *(ROOT / name for name in outside)}
    linked = [
        (page.relative_to(ROOT), target, (page.parent / target.partition("#")[0]).resolve())
        for page in site.intersection(pages.pages())
        for _, target in pages.links(page)
        if not target.startswith("#")
    ]
    assert [f"{page}: {target}" for page, target, file in linked if file not in site] == []


@each_row("folder", FOLDERS, ids=lambda path: path.name)
def test_the_index_of_a_folder_names_every_page(folder):
    index = (folder / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert named == {path.name for path in folder.glob("*.md")} - {"README.md"}


def test_every_folder_of_pages_has_an_index():
    assert {path.parent for path in DOCS.glob("*/*.md")} == set(FOLDERS)


def test_every_picture_is_made_by_a_script():
    made = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "CONTRIBUTING.md", ROOT / "tests/test_tutorials.py")
    )
    pictures = sorted((DOCS / "images").iterdir())
    assert len(pictures) >= 4
    assert [one.name for one in pictures if f"images/{one.name}" not in made] == []


# From the first page to a trained model

FIRST = [line for line, _ in sessions(CONSOLE.findall((DOCS / "index.md").read_text())[0])]


def test_the_first_page_leads_to_a_trained_model_in_six_commands():
    assert len(FIRST) <= 6
    assert FIRST[-1] == "fdl train quick"
    first = CONSOLE.findall((DOCS / "get-started.md").read_text())
    walked = [line for block in first for line, _ in sessions(block)]
    # The next page explains the same commands.
    assert [line for line in FIRST if line not in walked] == ["fdl train quick"]
    assert "fdl -q train quick" in walked


@pytest.mark.slow  # trains for three epochs
def test_the_commands_of_the_first_page_train_a_model(tmp_path):
    # The tests have flodl installed, and their Python is on PATH.
    line = " && ".join(one for one in FIRST if one.startswith(("fdl ", "cd ")))
    printed = typed(line, tmp_path)
    assert re.search(r"^accuracy \d+\.\d%", printed, re.MULTILINE), printed
    assert len(list(tmp_path.glob("demo/runs/quick/*/model.fdl"))) == 1
