"""`parity` compares outputs and keeps them as fixtures."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from flodl.hf import parity as module
from flodl.hf.__main__ import main
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.parity import batch_for, parity


@pytest.mark.slow
def test_all_thirty_five_cells_agree(tmp_path, capsys):
    assert main(["parity", "all", "--synthetic", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["PASS"] * 35
    assert len(list(tmp_path.glob("*.safetensors"))) == 35
    first = load_file(tmp_path / "bert.safetensors")
    assert {name for name in first if name.startswith("outputs.")} == {
        "outputs.last_hidden_state",
        "outputs.pooler_output",
    }
    assert "outputs.start_logits" in load_file(tmp_path / "albert-qa.safetensors")
    with safe_open(tmp_path / "bert.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata.keys() == {
        "source_model",
        "source_sha",
        "torch_version",
        "transformers_version",
        "sdpa_backend",
    }
    assert metadata["source_model"] == "synthetic"


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


def test_a_difference_is_told(monkeypatch, capsys):
    compute = module.outputs_of_graph

    def shifted(*given):
        return {name: tensor + 1e-4 for name, tensor in compute(*given).items()}

    monkeypatch.setattr(module, "outputs_of_graph", shifted)
    assert main(["parity", "bert-qa", "--synthetic"]) == 1
    assert capsys.readouterr().out.startswith("FAIL  bert-qa")


def test_without_an_output_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parity(all_cells()[:1], synthetic=True).passed
    assert list(tmp_path.iterdir()) == []
