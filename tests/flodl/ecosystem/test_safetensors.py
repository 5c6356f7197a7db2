"""Our checkpoints are safetensors files: the library reads them without knowing of us."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.flodl.ecosystem.networks import mixture, mixture_inputs


def test_the_library_reads_every_tensor_of_a_checkpoint(tmp_path: Path):
    torch.manual_seed(0)
    graph = mixture()
    graph.save_checkpoint(tmp_path / "graph.fdl")
    stored = load_file(tmp_path / "graph.fdl")
    assert set(stored) == {name for name, _ in graph.named_parameters()}
    for name, parameter in graph.named_parameters():
        assert torch.equal(stored[name], parameter.detach())


def test_the_library_reads_the_description_and_single_tensors(tmp_path: Path):
    graph = mixture()
    graph.save_checkpoint(tmp_path / "graph.fdl")
    with safe_open(tmp_path / "graph.fdl", framework="pt") as file:
        assert file.metadata()["structural_hash"] == graph.structural_hash()
        assert file.metadata()["label"] == "mixture"
        assert torch.equal(file.get_tensor("head.bias"), graph.get_parameter("head.bias").detach())
        assert file.get_slice("head.weight").get_shape() == [3, 16]


def test_what_the_library_read_becomes_a_state_dict(tmp_path: Path):
    torch.manual_seed(0)
    graph, other, inputs = mixture(), mixture(), mixture_inputs()
    graph.save_checkpoint(tmp_path / "graph.fdl")
    stored = load_file(tmp_path / "graph.fdl")
    other.load_state_dict(stored)
    torch.testing.assert_close(other(*inputs), graph(*inputs), rtol=0, atol=0)
