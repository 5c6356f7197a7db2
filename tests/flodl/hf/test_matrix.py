"""The grid of all families and heads."""

import json
import time

import pytest
import torch

from flodl.hf import reference
from flodl.hf.__main__ import main
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, HEADS, all_cells, tiny_config, verify_matrix
from flodl.hf.reference import batch_for


def test_there_is_one_cell_of_each_family_with_each_head():
    cells = all_cells()
    assert [(cell.family, cell.head) for cell in cells] == [
        (family, head) for family in FAMILIES for head in HEADS
    ]
    assert len(cells) == 35
    converted = [cell.repo for cell in cells if cell.needs_convert]
    assert converted == [
        "nateraw/bert-base-uncased-emotion",
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        "microsoft/deberta-v2-xlarge",
    ]


@pytest.mark.case("hf", 41)
def test_all_thirty_five_cells_pass(capsys):
    began = time.process_time()  # what other programs take does not count
    assert main(["verify-matrix", "--synthetic"]) == 0
    assert time.process_time() - began < 120
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


def test_rows_are_padded_on_both_sides_and_have_both_segments():
    enc = batch_for(tiny_config(all_cells()[0]))
    mask = enc.attention_mask.bool()
    lengths = mask.sum(1).tolist()
    assert len(set(lengths)) == len(lengths)
    assert (mask[:, 0].tolist(), mask[:, -1].tolist()) == (
        [True, False, True, False],
        [True, True, False, True],
    )
    assert set(enc.token_type_ids[mask].tolist()) == {0, 1}
    assert torch.equal(enc.input_ids == 0, ~mask)
