"""Freezing parts of a model by the names its checkpoint has for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.errors import PathError
from flodl.graph import Graph
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids
from tests.rows import each_row


def frozen(graph: Graph) -> set[str]:
    return {name for name, p in graph.named_parameters() if not p.requires_grad}


def below(graph: Graph, *prefixes: str) -> set[str]:
    """The names of parameters that begin so, as a checkpoint spells them."""
    starts = tuple(f"{prefix}." for prefix in prefixes)
    return {name for name, _ in graph.named_parameters() if name.startswith(starts)}


PATTERNS = [
    ("bert", "bert.embeddings", ["bert.embeddings"]),
    ("bert", "bert.encoder.layer.[0-5]", ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
    ("bert", "bert.encoder.layer.[1-11]", ["bert.encoder.layer.1", "bert.encoder.layer.2"]),
    ("bert", "classifier", ["classifier"]),
    (
        "roberta",
        "roberta.encoder.layer.*.attention",
        [f"roberta.encoder.layer.{index}.attention" for index in range(3)],
    ),
    ("xlm-roberta", "classifier.dense", ["classifier.dense"]),
    ("distilbert", "distilbert.transformer.layer.?.ffn.lin[1-2]", []),
    ("deberta-v2", "deberta.encoder.rel_embeddings", ["deberta.encoder.rel_embeddings"]),
    ("deberta-v2", "pooler", ["pooler"]),
]


@pytest.mark.case("hf", 45)
@each_row(("family", "path", "prefixes"), PATTERNS)
def test_a_path_freezes_what_begins_with_it_and_nothing_else(
    family: str, path: str, prefixes: list[str]
) -> None:
    graph = small_model(family, HeadKind.SEQCLS)
    if path == "bert.encoder.layer.[0-5]":
        prefixes = [*prefixes, "bert.encoder.layer.2"]
    if family == "distilbert":
        prefixes = [
            f"distilbert.transformer.layer.{index}.ffn.lin{part}"
            for index in range(3)
            for part in (1, 2)
        ]
    expected = below(graph, *prefixes)
    assert expected
    graph.freeze(path)
    assert frozen(graph) == expected
    assert graph.is_frozen(path)
    assert {id(p) for p in graph.parameters_at(path)} == {
        id(p) for name, p in graph.named_parameters() if name in expected
    }
    graph.thaw(path)
    assert frozen(graph) == set()


@each_row("family", FAMILIES)
@each_row("kind", list(HeadKind))
def test_every_name_of_a_checkpoint_can_be_addressed(family: str, kind: HeadKind) -> None:
    graph = small_model(family, kind)
    for name, parameter in graph.named_parameters(remove_duplicate=False):
        path = name.rpartition(".")[0]
        found = graph.parameters_at(path)
        assert any(parameter is one for one in found)
    everything = "*" if kind is not HeadKind.BASE else "[0-9]"
    with pytest.raises(PathError):
        graph.freeze(f"{everything}.nowhere")


def test_an_encoder_alone_knows_the_names_of_a_model_with_a_head() -> None:
    graph = small_model("bert")
    graph.freeze("bert.encoder.layer.0")
    assert frozen(graph) == below(graph, "encoder.layer.0")
    graph.freeze("bert")
    assert not graph.trainable_parameters()
    graph.thaw("pooler")
    assert {name for name, p in graph.named_parameters() if p.requires_grad} == {
        "pooler.dense.weight",
        "pooler.dense.bias",
    }


@pytest.mark.case("hf", 45)
def test_a_shared_layer_of_albert_is_frozen_once_however_often_it_runs() -> None:
    graph = small_model("albert", HeadKind.SEQCLS, num_hidden_layers=5)
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    graph.freeze("albert.encoder.albert_layer_groups.*")
    assert frozen(graph) == below(graph, layer)
    parameters = graph.parameters_at("albert.encoder.albert_layer_groups.*.albert_layers.*")
    assert len(parameters) == len({id(p) for p in parameters}) == 16


@pytest.mark.case("hf", 45)
@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_tensors_stay_bit_for_bit_while_the_rest_is_trained(family: str) -> None:
    graph = small_model(family, HeadKind.SEQCLS).train()
    optimizer = torch.optim.AdamW(graph.parameters(), lr=1e-2, weight_decay=0.1)
    ids, mask = some_ids()

    def step() -> None:
        loss = nn.functional.cross_entropy(graph(ids, mask), torch.tensor([0, 1, 1, 0]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()  # so that the optimizer remembers all of them
    graph.freeze("*.embeddings")
    other = {"distilbert": "*.transformer.layer.[0-1]", "modernbert": "model.layers.[0-1]"}
    layers = other.get(family, "*.encoder.layer.[0-1]")
    graph.freeze("albert.encoder.albert_layer_groups.0" if family == "albert" else layers)
    kept = {name: p.detach().clone() for name, p in graph.named_parameters()}
    assert 0 < len(frozen(graph)) < len(kept)
    for _ in range(3):
        step()
    moved = {name for name, p in graph.named_parameters() if not torch.equal(p, kept[name])}
    assert not moved & frozen(graph)
    # Whatever gets no gradient in this model cannot move either.
    used = {name for name, p in graph.named_parameters() if p.grad is not None}
    assert moved == used
    assert "classifier.weight" in moved or "classifier.out_proj.weight" in moved


def test_learning_rates_by_path() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    groups = [
        graph.optim_group("bert.encoder.layer.[0-1]", 1e-5),
        graph.optim_group("bert.encoder.layer.2", 5e-5),
        graph.optim_group("classifier", 1e-3),
    ]
    optimizer = torch.optim.AdamW(groups)
    assert [len(group["params"]) for group in optimizer.param_groups] == [32, 16, 2]
    assert [group["lr"] for group in optimizer.param_groups] == [1e-5, 5e-5, 1e-3]
