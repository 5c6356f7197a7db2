"""Changing the shape of a model, and taking parts out of it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.errors import PathError
from flodl.graph import FlowBuilder, Graph
from flodl.hf import BertConfig, BertForMaskedLM, BertModel
from flodl.hf.build import build
from flodl.hf.encoder_model import backbone_outputs
from flodl.hf.errors import ConfigError
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import add_lora, merge_lora
from flodl.hf.surgery import drop_layers, extract, resize_vocab
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models_material import (
    FAMILIES,
    VOCABULARY,
    small_config,
    small_model,
    some_ids,
)
from tests.rows import each_row

LAYERED = [family for family in FAMILIES if family != "albert"]


def config_of(graph: Graph) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(graph.source_config or "null")
    return fields


def rebuilt(graph: Graph, kind: HeadKind) -> Graph:
    """The model that the configuration of a graph describes, with the weights of the graph."""
    config = AutoConfig.from_json_str(graph.source_config or "")
    pooler = any("pooler" in name for name in graph.state_dict())
    other = build(config, kind, pooler=pooler, device="cpu")
    other.load_state_dict(graph.state_dict(), strict=True)
    return other.eval()


def output(graph: Graph) -> Tensor:
    with torch.no_grad():
        result: Tensor = graph(*some_ids())
    return result


def layers_of(family: str) -> str:
    prefix = small_config(family).prefix
    if family == "modernbert":
        return f"{prefix}.layers"
    return f"{prefix}.transformer.layer" if family == "distilbert" else f"{prefix}.encoder.layer"


# --- Extracting ------------------------------------------------------------------------------


@each_row("family", FAMILIES)
@each_row("kind", [HeadKind.SEQCLS, HeadKind.TOKCLS, HeadKind.MLM])
def test_the_encoder_of_a_model_with_a_head_is_a_model(family: str, kind: HeadKind) -> None:
    graph = small_model(family, kind)
    config = AutoConfig.from_json_str(graph.source_config or "")
    encoder = extract(graph, config.prefix)
    ids, mask = some_ids()
    expected = backbone_outputs(graph, batch_of_ids(ids, mask))
    assert torch.equal(encoder(ids, mask), expected.last_hidden_state)
    if expected.pooler_output is not None:
        pooled = encoder.tagged("pooler_output")
        assert pooled is not None
        assert torch.equal(pooled, expected.pooler_output)
    assert config_of(encoder)["architectures"] == [config.class_name(HeadKind.BASE)]
    assert config_of(graph)["architectures"] == [config.class_prefix + kind.suffix]
    assert rebuilt(encoder, HeadKind.BASE).structural_hash() == encoder.structural_hash()
    before = output(graph)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    assert torch.equal(output(graph), before)


@each_row("family", LAYERED)
@each_row(("first", "last"), [(0, 1), (1, 2), (2, 2)])
def test_layers_alone_compute_what_they_do_inside(family: str, first: int, last: int) -> None:
    extra = {"conv_kernel_size": 3} if family == "deberta-v2" else {}
    graph = small_model(family, HeadKind.TOKCLS, **extra)
    ids, mask = some_ids()
    states = backbone_outputs(graph, batch_of_ids(ids, mask), hidden_states=True).hidden_states
    assert states is not None
    part = extract(graph, f"{layers_of(family)}.{first}-{last}")
    assert not part.training
    result = part(states[first], attention_mask=mask)
    counts = mask == 1
    if family == "modernbert" and last == 2:  # the last state is normalised, and no layer does that
        norm: Any = graph.get_submodule("model.final_norm")
        result = norm(result)
    torch.testing.assert_close(result[counts], states[last + 1][counts], atol=1e-6, rtol=0)
    names = [name.removeprefix("encoder.").removeprefix("layer.") for name in part.state_dict()]
    numbers = {name.split(".")[0] for name in names if name[0].isdigit()}
    assert numbers == {str(index) for index in range(last - first + 1)}
    assert part(states[first]).shape == states[first].shape
    again = pickle.loads(pickle.dumps(part))(states[first], mask)
    assert torch.equal(again, part(states[first], mask))


@each_row(
    ("family", "path", "message"),
    [
        ("bert", "bert.embeddings", "'bert.embeddings' is neither the encoder nor layers of it"),
        ("bert", "bert.encoder", "'bert.encoder' is neither"),
        ("bert", "bert.encoder.layer", "'bert.encoder.layer' is neither"),
        ("bert", "bert.encoder.layer.0.attention.self", "'bert.encoder.layer.0.attention.self' is"),
        ("bert", "bert.encoder.layer.7", "no child graph|module 'bert.encoder.layer' has"),
        ("bert", "bert.last_hidden_state", "'bert.last_hidden_state' is neither"),
        ("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0", "is neither"),
    ],
)
def test_what_cannot_stand_alone_is_refused(family: str, path: str, message: str) -> None:
    with pytest.raises(PathError, match=message):
        extract(small_model(family, HeadKind.TOKCLS), path)


def test_an_adapted_encoder_is_extracted_after_merging() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, "query")
    with pytest.raises(ConfigError, match=r"they differ in 'encoder.layer.0.*lora_A'; merge"):
        extract(graph, "bert")
    merge_lora(graph)
    ids, mask = some_ids()
    expected = backbone_outputs(graph, batch_of_ids(ids, mask)).last_hidden_state
    assert torch.equal(extract(graph, "bert")(ids, mask), expected)


# --- Dropping layers -------------------------------------------------------------------------


@each_row("family", LAYERED)
@each_row("kind", [HeadKind.BASE, HeadKind.SEQCLS])
def test_the_other_layers_move_up_and_the_configuration_follows(
    family: str, kind: HeadKind
) -> None:
    graph = small_model(family, kind)
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    drop_layers(graph, [1])
    for name, value in graph.state_dict().items():
        old = name.replace(".layer.1.", ".layer.2.").replace("layers.1.", "layers.2.")
        assert torch.equal(value, before[old])
    key = "n_layers" if family == "distilbert" else "num_hidden_layers"
    assert config_of(graph)[key] == 2
    other = rebuilt(graph, kind)
    assert torch.equal(output(graph), output(other))
    assert graph.structural_hash() == other.structural_hash()


def test_layers_of_modernbert_keep_their_type_of_attention() -> None:
    full, near = "full_attention", "sliding_attention"
    graph = small_model("modernbert", num_hidden_layers=4)  # full, near, near, full
    shape = graph.structural_hash()
    with pytest.raises(ConfigError, match="layer 0 of a ModernBERT cannot be dropped"):
        drop_layers(graph, [0, 1])
    assert graph.structural_hash() == shape
    drop_layers(graph, [1])
    fields = config_of(graph)
    assert (fields["num_hidden_layers"], fields["global_attn_every_n_layers"]) == (3, 2)
    assert torch.equal(output(graph), output(rebuilt(graph, HeadKind.BASE)))
    # Only a list can say this, and transformers 4 knows no lists.
    graph = small_model("modernbert", num_hidden_layers=4, layer_types=(full, near, full, full))
    assert "global_attn_every_n_layers" not in config_of(graph)
    drop_layers(graph, [2])
    assert config_of(graph)["layer_types"] == [full, near, full]
    assert config_of(graph)["global_attn_every_n_layers"] == 2
    assert torch.equal(output(graph), output(rebuilt(graph, HeadKind.BASE)))


def test_shared_layers_run_less_often() -> None:
    graph = small_model("albert", num_hidden_layers=4)
    keys = list(graph.state_dict())
    drop_layers(graph, [0, 3])
    assert list(graph.state_dict()) == keys
    assert config_of(graph)["num_hidden_layers"] == 2
    assert torch.equal(output(graph), output(rebuilt(graph, HeadKind.BASE)))
    grouped = small_model("albert", num_hidden_layers=4, num_hidden_groups=2)
    with pytest.raises(ConfigError, match="run in 2 groups"):
        drop_layers(grouped, [0])


@each_row(
    ("layers", "message"),
    [
        ([3], "there is no layer 3: the encoder has layers 0 to 2"),
        ([-1], "there is no layer -1"),
        ([0, 1, 2], "none of the 3 layers would be left"),
    ],
)
def test_layers_that_cannot_be_dropped(layers: list[int], message: str) -> None:
    graph = small_model("bert")
    shape = graph.structural_hash()
    with pytest.raises(ValueError, match=message):
        drop_layers(graph, layers)
    assert graph.structural_hash() == shape
    with pytest.raises(ValueError, match="no encoder with layers"):
        drop_layers(FlowBuilder.from_(nn.Linear(1, 1)).build(), [0])


@each_row("path", ["bert", "bert.encoder.layer.0-1"])
def test_what_was_frozen_is_frozen_in_the_copy(path: str) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    graph.freeze("bert.encoder.layer.0")
    part = extract(graph, path)
    frozen = {name for name, one in part.named_parameters() if not one.requires_grad}
    assert frozen == {n for n, _ in part.named_parameters() if n.startswith("encoder.layer.0.")}


# --- Resizing the vocabulary -----------------------------------------------------------------


@each_row("family", FAMILIES)
@each_row("size", [VOCABULARY + 7, VOCABULARY - 7])
def test_table_and_decoder_change_together(family: str, size: int) -> None:
    graph = small_model(family, HeadKind.MLM)
    ids = some_ids()[0] % (VOCABULARY - 7)
    before = graph(ids)
    resize_vocab(graph, size)
    after = graph(ids)
    assert after.shape == (*ids.shape, size)
    same = min(size, VOCABULARY)
    torch.testing.assert_close(after[..., :same], before[..., :same], atol=1e-6, rtol=0)
    assert config_of(graph)["vocab_size"] == size
    widths = {m.num_embeddings for m in graph.modules() if isinstance(m, nn.Embedding)}
    widths |= {m.out_features for m in graph.modules() if isinstance(m, nn.Linear)}
    assert size in widths
    assert VOCABULARY not in widths  # modules say what they are
    other = build(AutoConfig.from_json_str(graph.source_config or ""), HeadKind.MLM, device="cpu")
    names = [len(list(g.named_parameters())) for g in (graph, other)]
    assert names[0] == names[1]  # what was tied is tied
    other.load_state_dict(graph.state_dict())
    assert torch.equal(other.eval()(ids), after)
    assert other.structural_hash() == graph.structural_hash()


def test_the_legacy_and_the_newer_head_of_deberta() -> None:
    for legacy in (True, False):
        graph = small_model("deberta-v2", HeadKind.MLM, legacy=legacy)
        count = len(list(graph.parameters()))
        resize_vocab(graph, 70)
        assert graph(some_ids()[0]).shape[-1] == 70
        assert len(list(graph.parameters())) == count


def test_an_untied_decoder_gets_rows_of_its_own() -> None:
    graph = small_model("bert", HeadKind.MLM, tie_word_embeddings=False)
    resize_vocab(graph, VOCABULARY + 5)
    table = graph.get_parameter("bert.embeddings.word_embeddings.weight")
    decoder = graph.get_parameter("cls.predictions.decoder.weight")
    assert table.shape == decoder.shape == (VOCABULARY + 5, 16)
    assert not torch.equal(table[VOCABULARY:], decoder[VOCABULARY:])
    for name in ("bias", "decoder.bias"):
        bias = graph.get_parameter(f"cls.predictions.{name}")
        assert bias.shape == (VOCABULARY + 5,)
        assert torch.equal(bias[VOCABULARY:], torch.zeros(5))


def test_new_rows_are_drawn_by_the_seed_with_the_spread_of_the_configuration() -> None:
    graph = small_model("bert", initializer_range=0.5)
    again, other = copy.deepcopy(graph), copy.deepcopy(graph)
    state = torch.get_rng_state()
    resize_vocab(graph, 4000, seed=4)
    resize_vocab(again, 4000, seed=4)
    resize_vocab(other, 4000, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    rows = [
        g.get_parameter("embeddings.word_embeddings.weight")[VOCABULARY:]
        for g in (graph, again, other)
    ]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert rows[0].std().item() == pytest.approx(0.5, rel=0.02)
    assert rows[0].mean().item() == pytest.approx(0.0, abs=0.01)


def test_what_was_frozen_stays_frozen_and_dtypes_stay() -> None:
    graph = small_model("bert").to(torch.bfloat16)
    graph.freeze("embeddings.word_embeddings")
    resize_vocab(graph, 64)
    table = graph.get_parameter("embeddings.word_embeddings.weight")
    assert (table.dtype, table.requires_grad) == (torch.bfloat16, False)


def test_the_present_size_changes_nothing() -> None:
    model = BertForMaskedLM(small_config("bert", HeadKind.MLM))
    before = dict(model.named_parameters())
    model.resize_token_embeddings(VOCABULARY)
    after = dict(model.named_parameters())
    assert {name: id(one) for name, one in after.items()} == {n: id(p) for n, p in before.items()}


@each_row("size", [0, -3, True, 2.5])
def test_impossible_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="a vocabulary has a whole number of words"):
        resize_vocab(small_model("bert"), size)


def test_the_padding_keeps_its_row() -> None:
    with pytest.raises(ConfigError, match="no row for the padding, whose id is 1"):
        resize_vocab(small_model("roberta"), 1)
    with pytest.raises(ValueError, match="no word table"):
        resize_vocab(FlowBuilder.from_(nn.Linear(1, 1)).build(), 3)


# --- Replacing -------------------------------------------------------------------------------


def test_a_part_of_a_model_is_replaced_by_its_path() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    old = graph.replace("classifier", nn.Linear(16, 5))
    assert isinstance(old, nn.Linear)
    assert output(graph).shape == (4, 5)
    graph.replace("bert.encoder.layer.1.attention.self.query", nn.Linear(16, 16, bias=False))
    assert "bert.encoder.layer.1.attention.self.query.bias" not in graph.state_dict()
    assert output(graph).isfinite().all()


@each_row("change", [lambda graph: drop_layers(graph, [1]), lambda graph: resize_vocab(graph, 70)])
def test_the_encoder_of_a_head_knows_the_change_too(change: Callable[[Graph], object]) -> None:
    model = BertForMaskedLM(BertConfig.from_dict(small_config("bert").source))
    encoder = model.bert
    assert encoder.config == model.config
    change(model.graph)
    assert encoder.config == model.config
    assert BertModel(encoder.config).graph.state_dict().keys() >= encoder.state_dict().keys()
