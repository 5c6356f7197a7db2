"""LoRA: what is adapted, what is trained, merging, and adapters in files next to PEFT."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from flodl.errors import CheckpointError, PathError, StateError
from flodl.graph import FlowBuilder, Graph
from flodl.hf import AutoModelForSequenceClassification
from flodl.hf.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    ConfigError,
    PickleOnlyError,
)
from flodl.hf.export import export_command
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import (
    LoraLinear,
    LoraSettings,
    add_lora,
    assign_change,
    merge_lora,
    unmerge_lora,
)
from flodl.hf.lora_files import load_lora, save_lora
from tests.flodl.hf.models_material import FAMILIES, small_config, small_model, some_ids
from tests.rows import each_row

ATTENTION = {
    "distilbert": ["q_lin", "v_lin"],
    "deberta-v2": ["query_proj", "value_proj"],
    "modernbert": ["Wqkv", "Wo"],
}


def targets(family: str) -> list[str]:
    return ATTENTION.get(family, ["query", "value"])


def scramble(graph: Graph, *, seed: int = 7) -> None:
    """Give every adapter values under which it changes the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in graph.named_parameters():
            if name.endswith(("lora_A", "lora_B")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


def trained(graph: Graph) -> set[str]:
    return {name for name, p in graph.named_parameters() if p.requires_grad}


def output(graph: Graph) -> Tensor:
    with torch.no_grad():
        logits: Tensor = graph(*some_ids())
    return logits


def gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def values(graph: Graph) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in graph.named_parameters()}


# --- One layer -------------------------------------------------------------------------------


def test_an_adapted_layer_computes_what_the_paper_says() -> None:
    linear = nn.Linear(5, 3)
    before = linear(torch.ones(2, 5))
    layer = LoraLinear.adapt(linear, LoraSettings(r=2, alpha=6))
    assert layer is linear
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias", "lora_A", "lora_B"]
    assert (layer.lora_A.shape, layer.lora_B.shape) == ((2, 5), (3, 2))
    assert torch.equal(layer(torch.ones(2, 5)), before)
    assign_change(layer, layer.lora, torch.randn(2, 5), torch.randn(3, 2))
    x = torch.randn(4, 7, 5)
    expected = x @ layer.weight.T + layer.bias + 3.0 * (x @ layer.lora_A.T @ layer.lora_B.T)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.change(), 3.0 * layer.lora_B @ layer.lora_A)
    assert "r=2, alpha=6" in repr(layer)


def test_a_layer_without_bias_and_its_hooks_are_kept() -> None:
    linear = nn.Linear(4, 4, bias=False)
    seen: list[Tensor] = []
    linear.register_forward_hook(lambda _, __, result: seen.append(result))
    layer = LoraLinear.adapt(linear, LoraSettings())
    result = layer(torch.ones(1, 4))
    assert "bias" not in dict(layer.named_parameters())
    assert seen[0] is result


def test_dropout_touches_the_change_alone_and_only_in_training() -> None:
    layer = LoraLinear.adapt(nn.Linear(64, 8), LoraSettings(r=4, alpha=4, dropout=0.5))
    assign_change(layer, layer.lora, torch.randn(4, 64), torch.zeros(8, 4))
    x = torch.randn(3, 64)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assign_change(layer, layer.lora, torch.randn(4, 64), torch.randn(8, 4))
    assert gap(layer(x), layer(x)) > 1e-3
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@each_row("dtype", [torch.float16, torch.bfloat16])
def test_beside_half_precision_the_change_is_in_float32(dtype: torch.dtype) -> None:
    layer = LoraLinear.adapt(nn.Linear(4, 4).to(dtype), LoraSettings(r=2))
    assert layer.lora_A.dtype == layer.lora_B.dtype == torch.float32
    assert layer(torch.ones(1, 4, dtype=dtype)).dtype == dtype


@each_row(
    ("settings", "message"),
    [
        ({"r": 0}, "r=0: the rank is a whole number of at least 1"),
        ({"r": True}, "r=True"),
        ({"alpha": math.inf}, "alpha=inf: it must be finite"),
        ({"dropout": 1.0}, "dropout=1.0: it must be at least 0 and below 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_lora(small_model("bert"), "query", **settings)


def test_only_plain_linear_layers_are_adapted() -> None:
    with pytest.raises(TypeError, match=r"adapts torch.nn.Linear, not Bilinear"):
        LoraLinear.adapt(nn.Bilinear(2, 2, 2), LoraSettings())  # type: ignore[arg-type]


# --- What is adapted -------------------------------------------------------------------------


def test_bare_names_mean_all_layers_so_called_and_everything_else_is_frozen() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    names = add_lora(graph, ["query", "value"], r=4)
    assert names == [
        f"bert.encoder.layer.{index}.attention.self.{part}"
        for index in range(3)
        for part in ("query", "value")
    ]
    assert trained(graph) == {
        *(f"{name}.{part}" for name in names for part in ("lora_A", "lora_B")),
        "classifier.weight",
        "classifier.bias",
    }


@each_row(
    ("paths", "count"),
    [
        ("bert.encoder.layer.[0-1].attention.self.query", 2),
        ("bert.encoder.layer.*.attention.self.*", 9),
        ("attention.self.key", 3),
        ("layer.0.intermediate.dense", 1),
        ("bert.encoder.layer.2", 6),
        (["quer?", "bert.pooler.dense"], 4),
        ("bert", 19),
    ],
)
def test_paths_patterns_ends_of_names_and_whole_parts(paths: str | list[str], count: int) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    names = add_lora(graph, paths)
    assert len(names) == count
    assert [n for n, m in graph.named_modules() if isinstance(m, LoraLinear)] == names


def test_the_head_is_trained_only_when_asked_to() -> None:
    graph = small_model("roberta", HeadKind.SEQCLS)
    names = add_lora(graph, "dense", train_head=False)
    assert "classifier.dense" in names
    assert not any("lora" not in name for name in trained(graph))
    graph = small_model("roberta", HeadKind.SEQCLS)
    assert not any(name.startswith("classifier") for name in add_lora(graph, "dense"))
    assert {name for name in trained(graph) if "lora" not in name} == {
        "classifier.dense.weight",
        "classifier.dense.bias",
        "classifier.out_proj.weight",
        "classifier.out_proj.bias",
    }
    with pytest.raises(ValueError, match=r"'classifier.dense', which belongs to a head"):
        add_lora(small_model("roberta", HeadKind.SEQCLS), "classifier.dense")


def test_a_head_that_is_tied_to_the_encoder_is_not_trained() -> None:
    for family in ("bert", "distilbert"):
        graph = small_model(family, HeadKind.MLM)
        add_lora(graph, targets(family))
        assert trained(graph) == {name for name, _ in graph.named_parameters() if "lora" in name}
        assert trained(graph)


def test_a_second_call_adds_to_the_first() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    first = add_lora(graph, "query", r=2)
    second = add_lora(graph, "value", r=3, train_head=False)
    assert len([name for name in trained(graph) if "lora" in name]) == 2 * len(first + second)
    with pytest.raises(ValueError, match="query' is adapted already"):
        add_lora(graph, "query")
    merge_lora(graph)
    with pytest.raises(ValueError, match="query' is adapted already"):
        add_lora(graph, "query")


def test_a_layer_that_stands_twice_is_adapted_once() -> None:
    shared = nn.Linear(4, 4)
    graph = FlowBuilder.from_(shared).through(shared).build()
    assert add_lora(graph, "linear_2") == ["linear_1"]
    assert len(list(graph.parameters())) == 4


@each_row(
    ("path", "message"),
    [
        ("qury", r"no linear layer is called 'qury'; did you mean query\?"),
        ("bert.encoder.layer.7", r"is called 'bert.encoder.layer.7'; there are:"),
        ("LayerNorm", "no linear layer is called 'LayerNorm'"),
        ("query[a]", "is not understood"),
    ],
)
def test_a_path_without_linear_layers_is_refused(path: str, message: str) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(PathError, match=message):
        add_lora(graph, ["query", path])
    assert not any(isinstance(module, LoraLinear) for module in graph.modules())


def test_a_tied_layer_is_refused() -> None:
    graph = small_model("bert", HeadKind.MLM)
    with pytest.raises(ValueError, match=r"decoder' is tied to 'bert.embeddings.word_embeddings'"):
        add_lora(graph, "cls.predictions.decoder")


@each_row("paths", [[], ()])
def test_no_paths_are_refused_and_freeze_nothing(paths: Any) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    before = trained(graph)
    with pytest.raises(ValueError, match="there are no paths: name the layers"):
        add_lora(graph, paths)
    assert trained(graph) == before == {name for name, _ in graph.named_parameters()}


def unchanged(graph: Graph, before: set[str]) -> bool:
    plain = not any(isinstance(module, LoraLinear) for module in graph.modules())
    return plain and trained(graph) == before


@each_row("dtype", [torch.float8_e4m3fn, torch.complex64])
def test_a_weight_that_cannot_be_adapted_is_named_and_nothing_is_changed(
    dtype: torch.dtype,
) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    before = trained(graph)
    last = graph.get_submodule("bert.encoder.layer.2.attention.self.query")
    last.weight = nn.Parameter(last.weight.detach().to(dtype))  # type: ignore[arg-type,operator]
    with pytest.raises(ValueError, match=rf"layer.2.attention.self.query' is of {dtype}"):
        add_lora(graph, "query")
    assert unchanged(graph, before)


def test_a_weight_that_is_computed_is_named_and_nothing_is_changed() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    last = graph.get_submodule("bert.encoder.layer.2.attention.self.query")
    prune.identity(last, "weight")  # type: ignore[no-untyped-call]
    before = trained(graph)
    with pytest.raises(ValueError, match=r"layer.2.attention.self.query' is no parameter"):
        add_lora(graph, "query")
    assert unchanged(graph, before)


def test_where_memory_ends_half_way_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    before = trained(graph)
    drawn = []

    def draw(tensor: Tensor, **_: Any) -> Tensor:
        drawn.append(tensor)
        if len(drawn) == 2:
            raise MemoryError
        return tensor

    monkeypatch.setattr(nn.init, "kaiming_uniform_", draw)
    with pytest.raises(MemoryError):
        add_lora(graph, "query")
    assert unchanged(graph, before)


# --- Training and merging --------------------------------------------------------------------


def train(graph: Graph, steps: int = 3) -> None:
    graph.train()
    optimizer = torch.optim.AdamW(graph.parameters(), lr=1e-2)
    ids, mask = some_ids()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(graph(ids, mask), torch.tensor([0, 1, 1, 0]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    graph.eval()


@pytest.mark.case("hf", 46)
def test_training_moves_adapters_and_head_and_leaves_the_rest_bit_for_bit() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    before = output(graph)
    add_lora(graph, ["query", "value"])
    start = values(graph)
    assert torch.equal(output(graph), before)
    train(graph)
    moved = {name for name, value in values(graph).items() if not torch.equal(value, start[name])}
    assert moved == trained(graph)
    assert gap(output(graph), before) > 1e-3


@pytest.mark.case("hf", 46)
@each_row("family", FAMILIES)
def test_merged_outputs_are_the_unmerged_ones(family: str) -> None:
    graph = small_model(family, HeadKind.SEQCLS)
    plain, keys = output(graph), list(graph.state_dict())
    shape = graph.structural_hash()
    add_lora(graph, targets(family))
    scramble(graph)
    adapted, held = output(graph), values(graph)
    assert gap(adapted, plain) > 1e-2
    merge_lora(graph)
    assert gap(output(graph), adapted) <= 1e-5
    assert list(graph.state_dict()) == keys
    assert graph.structural_hash() == shape
    unmerge_lora(graph)
    assert torch.equal(output(graph), adapted)
    assert all(torch.equal(value, held[name]) for name, value in values(graph).items())


def test_a_merged_model_can_be_copied_and_moved_and_unmerged_later() -> None:
    graph = small_model("distilbert")
    add_lora(graph, targets("distilbert"))
    scramble(graph)
    parameters = list(graph.parameters())
    merge_lora(graph)
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        unmerge_lora(other)
        merge_lora(other)
        assert torch.equal(output(other), output(graph))
    graph.to(torch.float64)
    unmerge_lora(graph)
    assert list(map(id, graph.parameters())) == list(map(id, parameters))


def test_merging_needs_adapters_and_unmerging_merged_ones() -> None:
    graph = small_model("bert")
    with pytest.raises(StateError, match="no layer is adapted"):
        merge_lora(graph)
    add_lora(graph, "query")
    with pytest.raises(StateError, match="no adapted layer is merged"):
        unmerge_lora(graph)


def test_a_checkpoint_of_an_adapted_model_holds_the_adapters(tmp_path: Path) -> None:
    graph = small_model("bert")
    add_lora(graph, "query")
    scramble(graph)
    graph.save_checkpoint(tmp_path / "adapted.fdl")
    other = small_model("bert")
    add_lora(other, "query")
    assert not other.load_checkpoint(tmp_path / "adapted.fdl").missing
    assert torch.equal(output(other), output(graph))


def test_a_model_is_written_for_other_tools_only_when_its_adapters_are_merged(
    tmp_path: Path,
) -> None:
    config = small_config("bert").replace(num_labels=3)
    model = AutoModelForSequenceClassification.from_config(config)
    add_lora(model.graph, "query")
    scramble(model.graph)
    wanted = output(model.graph.eval())
    with pytest.raises(StateError, match=r"call merge_lora before.*save_lora"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    model.graph.save_checkpoint(tmp_path / "adapted.fdl")
    with pytest.raises(CheckpointError, match=r"holds adapters.*merge_lora"):
        export_command(hub=None, checkpoint=tmp_path / "adapted.fdl", out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
    merge_lora(model.graph)
    model.save_pretrained(tmp_path / "model")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert gap(output(again.graph), wanted) < 1e-5


# --- Files -----------------------------------------------------------------------------------


def adapted_model(tmp_path: Path, **options: Any) -> Graph:
    """A model with adapters that are saved below ``tmp_path``."""
    graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, ["query", "value"], **{"r": 4, "alpha": 8, **options})
    scramble(graph)
    save_lora(graph, tmp_path)
    return graph


def stored(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def store(folder: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, folder / "adapter_model.safetensors")


def set_config(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_saved_adapters_are_loaded_into_a_fresh_model(tmp_path: Path) -> None:
    graph = adapted_model(tmp_path, dropout=0.25)
    with torch.no_grad():
        graph.get_parameter("classifier.weight").add_(1.0)
    save_lora(graph, tmp_path / "a" / "b")
    other = small_model("bert", HeadKind.SEQCLS)
    names = load_lora(other, tmp_path / "a" / "b")
    assert sorted(names) == [n for n, m in graph.named_modules() if isinstance(m, LoraLinear)]
    assert torch.equal(output(other), output(graph))
    assert trained(other) == trained(graph)
    assert {m.lora for m in other.modules() if isinstance(m, LoraLinear)} == {
        LoraSettings(4, 8, 0.25)
    }
    scramble(other, seed=8)
    load_lora(other, tmp_path / "a" / "b")
    assert torch.equal(output(other), output(graph))


def test_the_files_have_the_names_of_peft(tmp_path: Path) -> None:
    adapted_model(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert config["target_modules"] == ["query", "value"]
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 8, ["classifier"])
    assert (config["peft_type"], config["task_type"]) == ("LORA", "SEQ_CLS")
    layers = "base_model.model.bert.encoder.layer"
    assert set(stored(tmp_path)) == {
        *(
            f"{layers}.{index}.attention.self.{part}.lora_{matrix}.weight"
            for index in range(3)
            for part in ("query", "value")
            for matrix in "AB"
        ),
        "base_model.model.classifier.weight",
        "base_model.model.classifier.bias",
    }


def test_a_part_of_the_layers_of_a_name_is_saved_by_whole_names(tmp_path: Path) -> None:
    graph = small_model("roberta", HeadKind.SEQCLS)
    add_lora(graph, ["roberta.encoder.layer.1.attention.self.query", "value"])
    save_lora(graph, tmp_path / "first")
    other = small_model("roberta", HeadKind.SEQCLS)
    load_lora(other, tmp_path / "first")
    save_lora(other, tmp_path / "again")
    for name in ("first", "again"):
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert config["target_modules"] == ["roberta.encoder.layer.1.attention.self.query", "value"]
        assert config["modules_to_save"] == ["classifier"]


def test_of_several_patterns_for_a_layer_the_first_counts(tmp_path: Path) -> None:
    adapted_model(tmp_path)
    set_config(tmp_path, alpha_pattern={"0.attention.self.query": 3, "query": 5})
    graph = small_model("bert", HeadKind.SEQCLS)
    load_lora(graph, tmp_path)
    alphas = [m.lora.alpha for n, m in graph.named_modules() if n.endswith("query")]
    assert alphas == [3, 5, 5]


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    graph = adapted_model(tmp_path / "one")
    save_lora(graph, tmp_path / "two", base_model=None)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_encoder_takes_over_the_adapters_of_a_model_with_a_head(tmp_path: Path) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, "query", train_head=False)
    scramble(graph)
    save_lora(graph, tmp_path)
    encoder = small_model("bert")
    assert load_lora(encoder, tmp_path)[0] == "encoder.layer.0.attention.self.query"
    wanted = graph.get_parameter("bert.encoder.layer.1.attention.self.query.lora_A")
    assert torch.equal(encoder.get_parameter("encoder.layer.1.attention.self.query.lora_A"), wanted)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    graph = small_model("bert")
    with pytest.raises(StateError, match="no layer is adapted"):
        save_lora(graph, tmp_path)
    add_lora(graph, "query")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write the adapters"):
        save_lora(graph, tmp_path / "file")
    merge_lora(graph)
    with pytest.raises(StateError, match="merged into the weights: call unmerge_lora first"):
        save_lora(graph, tmp_path)


def test_a_file_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    adapted_model(tmp_path)
    tensors = stored(tmp_path)
    first = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_{}.weight"
    tensors[first.format("A").replace("layer.0", "layer.9")] = tensors[first.format("A")].clone()
    tensors[first.format("B").replace("layer.0", "layer.9")] = tensors[first.format("B")].clone()
    tensors["base_model.model.score.weight"] = torch.ones(2)
    tensors["stranger"] = torch.ones(1)
    tensors["base_model.model.classifier.weight"] = torch.ones(3, 16)
    tensors[first.format("A")] = torch.ones(4, 17)
    del tensors[first.format("B").replace("query", "value")]
    store(tmp_path, tensors)
    graph = small_model("bert", HeadKind.SEQCLS)
    before = values(graph)
    with pytest.raises(CheckpointMismatchError) as refused:
        load_lora(graph, tmp_path)
    assert refused.value.missing == [first.format("B").replace("query", "value")]
    assert refused.value.unused == [
        first.format("A").replace("layer.0", "layer.9"),
        first.format("B").replace("layer.0", "layer.9"),
        "base_model.model.score.weight",
        "stranger",
    ]
    assert refused.value.shape_mismatches == [
        (first.format("A"), (4, 16), (4, 17)),
        ("base_model.model.classifier.weight", (2, 16), (3, 16)),
    ]
    now = values(graph)
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', only LORA is known"),
        ({"lora_bias": True}, "lora_bias is True, which changes more than LoRA does"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', for which"),
        ({"bias": "some"}, "bias is 'some', known are none, all, lora_only"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"lora_dropout": 2}, "lora_dropout"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern"),
    ],
)
def test_other_kinds_of_adapters_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    adapted_model(tmp_path)
    set_config(tmp_path, **fields)
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(ConfigError, match=message):
        load_lora(graph, tmp_path)
    assert not any(isinstance(module, LoraLinear) for module in graph.modules())


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(CheckpointFormatError, match=r"has no adapter_config.json"):
        load_lora(graph, tmp_path)
    adapted_model(tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(CheckpointFormatError, match=r"adapter_model.safetensors cannot be read"):
        load_lora(graph, tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointFormatError, match=r"has no adapter_model.safetensors"):
        load_lora(graph, tmp_path)
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(PickleOnlyError, match="safe_serialization=True"):
        load_lora(graph, tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(CheckpointFormatError, match=r"adapter_config.json"):
            load_lora(graph, tmp_path)


def test_a_merged_model_takes_no_other_adapters(tmp_path: Path) -> None:
    graph = adapted_model(tmp_path)
    merge_lora(graph)
    with pytest.raises(StateError, match="is merged: call unmerge_lora first"):
        load_lora(graph, tmp_path)
