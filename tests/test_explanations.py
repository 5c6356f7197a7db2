"""The explanations: their code runs and prints what they show, and their commands exist."""

import contextlib
import io
from pathlib import Path

import pytest

from tests.test_guides import BLOCK, fits, sessions, typed
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


@pytest.mark.slow  # imports torch in another process
def test_the_prediction_of_the_page_is_the_one_of_the_program(tmp_path, fdl):
    assert fdl("init", "demo", "--native").exit == 0
    page = (FOLDER / "elche.md").read_text(encoding="utf-8")
    (block,) = (text for language, _, text in BLOCK.findall(page) if language == "console")
    for line, promised in sessions(block):
        seen = typed(line, tmp_path / "demo").splitlines()
        assert fits(promised, seen), "\n".join(seen)
