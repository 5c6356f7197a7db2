"""The grid of all families and heads."""

import json
import os
import signal
import time

import pytest

from flodl.hf import matrix, reference
from flodl.hf.__main__ import main
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, HEADS, all_cells, cells_named, verify_matrix
from tests.rows import each_row


def test_there_is_one_cell_of_each_family_with_each_head():
    cells = all_cells()
    assert [(cell.family, cell.head) for cell in cells] == [
        (family, head) for family in FAMILIES for head in HEADS
    ]
    converted = [cell.repo for cell in cells if cell.needs_convert]
    assert converted == [
        "nateraw/bert-base-uncased-emotion",
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        "microsoft/deberta-v2-xlarge",
    ]


@each_row(
    ("word", "names"),
    [
        ("bert", ["bert"]),
        ("xlm-roberta-mlm", ["xlm-roberta-mlm"]),
        ("deberta-v2-tokencls", ["deberta-v2-tokcls"]),
        ("albert-tokcls", ["albert-tokcls"]),
    ],
)
def test_a_cell_is_found_by_its_name(word, names):
    assert [cell.name for cell in cells_named(word)] == names


def test_all_are_thirty_five_and_an_unknown_name_says_what_there_is():
    assert len(cells_named("all")) == 35
    with pytest.raises(ValueError, match=r"there is no cell bert-lm.*-mlm"):
        cells_named("bert-lm")


@pytest.mark.case("hf", 41)
def test_all_thirty_five_cells_pass(capsys):
    began = time.monotonic()
    assert main(["verify-matrix", "--synthetic"]) == 0
    assert time.monotonic() - began < 120
    grid = capsys.readouterr().out
    assert grid.count("PASS") == 35
    assert [line.split()[0] for line in grid.splitlines()] == ["family", *FAMILIES]


@pytest.mark.case("hf", 41)
def test_a_broken_cell_stops_no_other(monkeypatch, tmp_path, capsys):
    make = reference.make_synthetic

    def break_one(config, kind, folder, name):
        make(config, kind, folder, name)
        if name == "roberta-qa":
            (folder / "model.safetensors").write_bytes(b"broken")

    monkeypatch.setattr(reference, "make_synthetic", break_one)
    words = ["--families", "bert,roberta", "--heads", "qa,base", "--staging-dir", str(tmp_path)]
    assert main(["verify-matrix", "--synthetic", *words]) == 1
    grid = capsys.readouterr().out
    assert (grid.count("PASS"), grid.count("FAIL")) == (3, 1)
    assert "roberta-qa: CheckpointFormatError" in grid
    assert grid.splitlines()[3].split()[1:] == ["-"] * 5
    assert list(tmp_path.iterdir()) == []


def test_exports_are_kept_on_demand_and_json_lists_the_cells(tmp_path, capsys):
    words = ["--families", "bert", "--heads", "qa", "--staging-dir", str(tmp_path), "--keep"]
    assert main(["verify-matrix", "--synthetic", "--json", *words]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["cell"]["family"], told["cell"]["head"], told["passed"]) == ("bert", "qa", True)
    assert (tmp_path / "bert-qa/export/model.safetensors").exists()


@pytest.mark.slow
def test_cells_may_run_side_by_side(tmp_path):
    grid = verify_matrix(
        families=("bert", "albert"), heads=("qa",), synthetic=True, staging=tmp_path, jobs=2
    )
    assert [one.cell.name for one in grid.results] == ["bert-qa", "albert-qa"]
    assert grid.passed, grid.as_text()


def test_every_head_is_forced(tmp_path):
    source = tmp_path / "bert-mlm"
    grid = verify_matrix(
        families=("bert",), heads=("mlm",), synthetic=True, staging=tmp_path, keep=True
    )
    assert grid.passed
    told = json.loads((source / "export/config.json").read_text())
    assert told["architectures"] == [f"Bert{HeadKind.MLM.suffix}"]


def test_nothing_else_in_the_staging_folder_is_touched(tmp_path):
    (tmp_path / "bert-qa/export").mkdir(parents=True)
    mine = [tmp_path / "bert-qa/notes.txt", tmp_path / "bert-qa/export/config.json"]
    for file in mine:
        file.write_text("mine")
    verify_matrix(families=("bert",), heads=("qa",), synthetic=True, staging=tmp_path)
    assert [file.read_text() for file in mine] == ["mine", "mine"]
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(mine)


RUN = matrix._run


def killed(cell, *, folder, synthetic):
    """Run a cell, or be the process that the system kills."""
    if cell.name == "bert-qa":
        os.kill(os.getpid(), signal.SIGKILL)
    return RUN(cell, folder=folder, synthetic=synthetic)


# Every process imports the reference, which takes seconds.
@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2, 3])
def test_a_process_that_is_killed_costs_its_own_cell_only(tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(matrix, "_run", killed)
    told = []
    grid = verify_matrix(
        families=("bert",),
        heads=("base", "seqcls", "qa", "mlm"),
        synthetic=True,
        staging=tmp_path,
        jobs=jobs,
        progress=told.append,
    )
    names = ["bert", "bert-seqcls", "bert-qa", "bert-mlm"]
    assert [one.cell.name for one in grid.results] == names
    assert [line.split()[:2] for line in told] == [
        [f"{name}:", "FAIL" if name == "bert-qa" else "PASS"] for name in names
    ]
    (failed,) = [one for one in grid.results if not one.passed]
    assert failed.reason.startswith("its process was killed")
    assert list(tmp_path.iterdir()) == []
