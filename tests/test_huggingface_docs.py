"""What the documentation says was measured of ``flodl.hf``: whole, in its bounds, repeatable."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flodl.hf import reference
from flodl.hf.matrix import FAMILIES, HEADS, all_cells
from flodl.hf.verify import TOLERANCE
from tests.rows import each_row
from tests.test_guides import LINK

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs/reference/huggingface.md"
CARDS = [ROOT / f"docs/models/{name}.md" for name in (*FAMILIES, "minilm")]
PAGES = [TABLE, *CARDS]
VERSIONS = re.compile(r"^transformers \d+\.\d+\.\d+, torch \d+\.\d+", re.MULTILINE)


def rows(page: Path) -> list[list[str]]:
    """Cells of the measured table of a page, without its heading."""
    _, _, rest = page.read_text(encoding="utf-8").partition("<!-- measured")
    table = re.search(r"^\|.*?\n(?=\n)", rest, re.DOTALL | re.MULTILINE)
    assert table is not None, page
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def assert_within_bounds(table: Path) -> None:
    found = rows(table)
    assert [(row[0], row[1]) for row in found] == [(f, h) for f in FAMILIES for h in HEADS]
    for _, _, _, forward, gradient, export, result in found:
        assert 0 <= float(forward) <= TOLERANCE
        assert 0 <= float(gradient) <= TOLERANCE
        assert re.fullmatch(r"\d+ tensors bit-exact", export)
        assert result == "PASS"


def test_all_thirty_five_cells_are_within_their_bounds():
    assert_within_bounds(TABLE)


@each_row("family", FAMILIES)
def test_a_card_says_what_the_table_says(family):
    of_table = [row[1:] for row in rows(TABLE) if row[0] == family]
    assert rows(ROOT / f"docs/models/{family}.md") == of_table


def test_the_card_of_the_published_model_is_within_its_bounds():
    found = {row[0]: row[1] for row in rows(ROOT / "docs/models/minilm.md")}
    apart = found["vectors, largest difference"]
    assert 0 < float(apart.partition(" ")[0]) <= TOLERANCE
    checks = {what: told for what, told in found.items() if what.startswith("verify-export")}
    assert len(checks) == 6
    assert all(told.startswith("PASS") for told in checks.values()), checks


@each_row("page", PAGES, ids=lambda path: path.stem)
def test_a_page_names_the_versions_and_is_short_enough_to_be_read(page):
    text = page.read_text(encoding="utf-8")
    assert VERSIONS.search(text)
    assert page == TABLE or text.count("\n") <= 60
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), target


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hf_script", ROOT / "scripts/huggingface.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "hf_script", module)
        spec.loader.exec_module(module)
        yield module


def cell(name):
    return next(one for one in all_cells() if one.name == name)


def test_a_cell_is_measured(script, tmp_path):
    found = script.measured(cell("distilbert-qa"), tmp_path)
    assert found.passed
    assert found.architecture == "DistilBertForQuestionAnswering"
    assert found.steepest > 1e-2
    assert [name for name, _ in found.checks] == [
        *("structure", "reference", "bytes"),
        *("config", "tokenizer", "source", "outputs", "losses"),
    ]


def test_a_difference_shows(script, tmp_path, monkeypatch):
    load = reference.load

    def shifted(weights, config):
        found = load(weights, config)
        with torch.no_grad():
            found.model.get_parameter("qa_outputs.bias").add_(1e-4)
        return found

    monkeypatch.setattr(script, "load", shifted)
    found = script.measured(cell("distilbert-qa"), tmp_path)
    assert found.forward == pytest.approx(1e-4, rel=1e-2)
    assert not found.passed
    table = script.table([found], families=True)
    assert table[-1].endswith("| FAIL |")


def test_what_is_written_by_hand_stays(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# above\n\n{script.BEGIN}old\n{script.END}below\n")
    script.write(page, ["new"])
    assert page.read_text() == f"# above\n\n{script.BEGIN}\nnew\n\n{script.END}below\n"
    page.write_text("# nothing here\n")
    with pytest.raises(ValueError, match="no place for what was measured"):
        script.write(page, ["new"])


@pytest.mark.slow
def test_measuring_again_gives_pages_within_the_bounds(script, tmp_path, monkeypatch):
    for page in PAGES:
        copy = tmp_path / page.relative_to(ROOT / "docs")
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(page, copy)
    monkeypatch.setattr(script, "DOCS", tmp_path)
    assert script.main(lambda _: None) == 0
    assert_within_bounds(tmp_path / "reference/huggingface.md")
