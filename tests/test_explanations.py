"""The explanations: their code runs and prints what they show, and their commands exist."""

import contextlib
import io
from pathlib import Path

import pytest

from tests.test_guides import fits
from tests.test_tutorials import steps

FOLDER = Path(__file__).parent.parent / "docs/explanation"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_an_explanation_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = {"__name__": "explanation"}
    ran = 0
    for line, block, promised in steps(page.read_text(encoding="utf-8")):
        seen = io.StringIO()
        code = compile("\n" * line + block, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(seen):
            exec(code, program)
        printed = seen.getvalue()
        assert fits(promised, printed.splitlines()), f"{page.name}:{line + 1}\n{printed}"
        ran += 1
    assert ran >= 1
