"""DoRA, biases and embeddings beside PEFT: files go both ways; outputs and gradients agree."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.errors import PathError, StateError
from flodl.graph import Graph
from flodl.hf.errors import CheckpointMismatchError, ConfigError
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import add_lora, merge_lora, unmerge_lora
from flodl.hf.lora_files import load_lora, save_lora
from flodl.hf.lora_layers import LoraEmbedding, LoraLinear, LoraSettings
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids
from tests.flodl.hf.test_lora import gap, output, stored, targets, trained, values
from tests.flodl.hf.test_lora_peft import attended, output_of, peft, reference
from tests.rows import each_row

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

EMBEDDINGS = ["word_embeddings", "token_type_embeddings", "position_embeddings"]
KINDS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "dora by the root": {"use_dora": True, "use_rslora": True},
    "all biases": {"bias": "all"},
    "biases of adapted layers": {"bias": "lora_only"},
    "embeddings": {"embeddings": True},
    "everything": {"use_dora": True, "bias": "all", "embeddings": True},
}
FEW = [("bert", name) for name in KINDS] + [("albert", "everything"), ("distilbert", "everything")]


def embeddings_of(family: str) -> list[str]:
    if family == "modernbert":
        return ["tok_embeddings"]
    return [name for name in EMBEDDINGS if family != "distilbert" or "type" not in name]


def layers_of(family: str, kind: dict[str, Any]) -> list[str]:
    return [*targets(family), *(embeddings_of(family) if kind.get("embeddings") else [])]


def options(kind: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kind.items() if name != "embeddings"}


def scramble_all(model: nn.Module, *, seed: int = 5) -> None:
    """Give everything that is trained values that show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


def by_peft(
    family: str,
    kind: dict[str, Any],
    folder: Path,
    head: HeadKind = HeadKind.SEQCLS,
    **more: Any,
) -> Any:
    """Adapters of a classifier, saved by PEFT, and the model they are of."""
    settings = peft().LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=layers_of(family, kind),
        task_type="SEQ_CLS" if head is HeadKind.SEQCLS else "TOKEN_CLS",
        **options(kind),
        **more,
    )
    plain = reference(small_model(family, head), head)
    theirs = peft().get_peft_model(plain, settings)
    scramble_all(theirs)
    theirs.save_pretrained(str(folder))
    return theirs


def our_name(name: str) -> str:
    """The name of a parameter of PEFT's model in ours."""
    name = name.removeprefix("base_model.model.")
    name = re.sub(r"\.base_layer|\.modules_to_save\.default", "", name)
    return re.sub(r"\.(lora_\w+)\.default(\.weight)?$", r".\1", name)


def gradients(model: nn.Module, logits: Tensor) -> dict[str, Tensor]:
    """The gradient of everything that is trained, by our names."""
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1, 0]))
    loss.backward()  # type: ignore[no-untyped-call]
    return {our_name(n): p.grad for n, p in model.named_parameters() if p.grad is not None}


def logits_of(model: Any) -> Tensor:
    ids, mask = some_ids()
    found: Tensor = model(input_ids=ids, attention_mask=mask).logits
    return found


@pytest.mark.parametrize(("family", "name"), FEW)
def test_files_of_peft_give_its_outputs_and_gradients(
    family: str, name: str, tmp_path: Path
) -> None:
    theirs = by_peft(family, KINDS[name], tmp_path).eval()  # classifiers drop out in training
    graph = small_model(family, HeadKind.SEQCLS)
    load_lora(graph, tmp_path)
    ours, expected = graph(*some_ids()), logits_of(theirs)
    assert gap(ours, expected) <= 1e-5
    wanted, found = gradients(theirs, expected), gradients(graph, ours)
    assert found.keys() == wanted.keys()
    assert found.keys() <= trained(graph)
    for key, value in wanted.items():
        assert gap(found[key], value) <= 1e-5 * max(1.0, float(value.abs().max())), key


@pytest.mark.parametrize(("family", "name"), FEW)
def test_our_files_give_our_outputs_in_peft(family: str, name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    graph = small_model(family, HeadKind.SEQCLS)
    plain = reference(graph, HeadKind.SEQCLS)
    before = output(graph)
    add_lora(graph, layers_of(family, kind), r=3, alpha=5, **options(kind))
    assert gap(output(graph), before) <= 1e-6  # the change adds nothing at first
    scramble_all(graph)
    save_lora(graph, tmp_path)
    assert gap(output(graph), before) > 1e-2
    theirs = peft().PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path, is_trainable=True)
    assert gap(output(graph), output_of(theirs.eval())) <= 1e-5
    learning = {our_name(n) for n, p in theirs.named_parameters() if p.requires_grad}
    assert {n for n in learning if "original_module" not in n} == trained(graph)
    again = small_model(family, HeadKind.SEQCLS)
    load_lora(again, tmp_path)
    assert trained(again) == trained(graph)
    assert torch.equal(output(again), output(graph))
    save_lora(again, tmp_path / "again")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("name", KINDS)
def test_merging_keeps_the_outputs_and_unmerging_every_bit(name: str) -> None:
    kind = KINDS[name]
    graph = small_model("roberta", HeadKind.SEQCLS)
    keys = list(graph.state_dict())
    add_lora(graph, layers_of("roberta", kind), r=3, **options(kind))
    scramble_all(graph)
    adapted, held = output(graph), values(graph)
    merge_lora(graph)
    assert list(graph.state_dict()) == keys
    assert {type(m) for m in graph.modules()}.isdisjoint({LoraLinear, LoraEmbedding})
    assert gap(output(graph), adapted) <= 1e-5
    plain = reference(graph, HeadKind.SEQCLS)
    assert gap(output_of(plain), adapted) <= 1e-5
    unmerge_lora(graph)
    assert torch.equal(output(graph), adapted)
    assert all(torch.equal(value, held[key]) for key, value in values(graph).items())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_family_and_kind_agrees_with_peft(
    family: str, name: str, seed: int, tmp_path: Path
) -> None:
    kind = KINDS[name]
    names = [one for one in layers_of(family, kind) if family != "deberta-v2" or "type" not in one]
    graph = small_model(family, HeadKind.TOKCLS, seed=seed)
    plain = reference(graph, HeadKind.TOKCLS)
    add_lora(graph, names, r=3, alpha=5, **options(kind))
    scramble_all(graph, seed=seed)
    save_lora(graph, tmp_path)
    theirs = peft().PeftModel.from_pretrained(plain, tmp_path).eval()
    assert gap(attended(output(graph)), attended(output_of(theirs))) <= 1e-5
    theirs.save_pretrained(str(tmp_path / "theirs"))
    again = small_model(family, HeadKind.TOKCLS, seed=seed)
    load_lora(again, tmp_path / "theirs")
    assert gap(output(again), output(graph)) == 0.0
    merge_lora(again)
    assert gap(attended(output(again)), attended(output(graph))) <= 1e-5


def test_dropout_of_dora_is_on_the_whole_change_and_only_in_training(tmp_path: Path) -> None:
    # A classifier of texts computes the last layer for one token only, and draws a smaller mask.
    head = HeadKind.TOKCLS
    theirs = by_peft("bert", KINDS["dora"], tmp_path, head, lora_dropout=0.4)
    graph = small_model("bert", head)
    load_lora(graph, tmp_path)
    assert gap(attended(output(graph)), attended(output_of(theirs.eval()))) <= 1e-5
    graph.train()
    theirs.train()
    ids, _ = some_ids()
    torch.manual_seed(3)
    ours = graph(ids, torch.ones_like(ids))
    # Without padding, both draw the same masks, one layer after the other.
    torch.manual_seed(3)
    assert gap(ours, theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).logits) <= 1e-5
    graph.eval()
    assert gap(ours, graph(ids, torch.ones_like(ids))) > 1e-3


def test_a_direction_of_zeros_stays_zero() -> None:
    linear = nn.Linear(4, 3)
    with torch.no_grad():
        linear.weight[1] = 0.0
    layer = LoraLinear.adapt(linear, LoraSettings(r=2, use_dora=True))
    x = torch.randn(2, 4)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


@each_row("dtype", [torch.float16, torch.bfloat16])
def test_beside_half_precision_the_magnitude_is_in_float32(dtype: torch.dtype) -> None:
    layer = LoraLinear.adapt(nn.Linear(4, 4).to(dtype), LoraSettings(r=2, use_dora=True))
    assert layer.lora_magnitude_vector.dtype == torch.float32
    assert layer(torch.ones(1, 4, dtype=dtype)).dtype == dtype
    table = LoraEmbedding.adapt(nn.Embedding(5, 4).to(dtype), LoraSettings(r=2, use_dora=True))
    assert table(torch.tensor([1])).dtype == dtype


def test_an_embedding_is_adapted_only_where_a_path_leads_to_it() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    assert not any("embeddings" in name for name in add_lora(graph, "bert"))
    graph = small_model("bert", HeadKind.SEQCLS)
    assert add_lora(graph, "bert.embeddings.*") == [
        f"bert.embeddings.{name}"
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    ]
    with pytest.raises(PathError, match="is called 'rel_embeddings'"):
        add_lora(small_model("deberta-v2"), "rel_embeddings")


def test_an_adapted_table_of_types_counts_without_types() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, "token_type_embeddings")
    scramble_all(graph)
    ids, mask = some_ids()
    with torch.no_grad():
        without, given = graph(ids, mask), graph(ids, mask, torch.zeros_like(ids))
    assert torch.equal(without, given)


def test_what_cannot_be_adapted_or_merged_is_said(tmp_path: Path) -> None:
    graph = small_model("bert", HeadKind.MLM)
    with pytest.raises(ValueError, match=r"word_embeddings' is tied to 'cls.predictions.decoder'"):
        add_lora(graph, "word_embeddings")
    with pytest.raises(ValueError, match="bias='some': it is 'none', 'all' or 'lora_only'"):
        add_lora(graph, "query", bias="some")  # type: ignore[arg-type]
    add_lora(graph, "query", use_dora=True)
    with pytest.raises(ValueError, match=r"query' is adapted with use_dora: adapt all layers"):
        add_lora(graph, "value")
    table = nn.Embedding(4, 2, max_norm=1.0)
    with pytest.raises(TypeError, match="max_norm"):
        LoraEmbedding.adapt(table, LoraSettings())
    # PEFT adapts a tied table: it can be used here, and its merge is refused.
    settings = peft().LoraConfig(r=2, target_modules=["word_embeddings"])
    theirs = peft().get_peft_model(
        reference(small_model("bert", HeadKind.MLM), HeadKind.MLM), settings
    )
    scramble_all(theirs)
    theirs.save_pretrained(str(tmp_path))
    graph = small_model("bert", HeadKind.MLM)
    load_lora(graph, tmp_path)
    assert gap(attended(output(graph)), attended(output_of(theirs.eval()))) <= 1e-5
    with pytest.raises(StateError, match=r"tied to 'cls.predictions.decoder', which merging"):
        merge_lora(graph)


def test_a_table_that_peft_saved_as_well_must_be_that_of_the_model(tmp_path: Path) -> None:
    theirs = by_peft("bert", KINDS["embeddings"], tmp_path)
    theirs.save_pretrained(str(tmp_path), save_embedding_layers=True)
    key = "base_model.model.bert.embeddings.word_embeddings.base_layer.weight"
    assert key in stored(tmp_path)
    graph = small_model("bert", HeadKind.SEQCLS)
    load_lora(graph, tmp_path)
    assert gap(output(graph), output_of(theirs.eval())) <= 1e-5
    assert "bert.embeddings.word_embeddings.weight" not in trained(graph)
    other = small_model("bert", HeadKind.SEQCLS, seed=9)
    with pytest.raises(ConfigError, match="differs from the weight of the model"):
        load_lora(other, tmp_path)


def test_a_file_without_its_magnitudes_is_refused(tmp_path: Path) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, "query")
    save_lora(graph, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(CheckpointMismatchError) as refused:
        load_lora(small_model("bert", HeadKind.SEQCLS), tmp_path)
    assert refused.value.missing[0].endswith("layer.0.attention.self.query.lora_magnitude_vector")


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    graph: Graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, ["query", "word_embeddings"])
    save_lora(graph, tmp_path)
    other = small_model("bert", HeadKind.SEQCLS)
    torch.manual_seed(1)
    load_lora(other, tmp_path)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))


class Scaled(nn.Embedding):
    """An embedding that does something else than look up."""


@each_row(
    ("embedding", "says"),
    [
        (Scaled(5, 4), "LoRA adapts torch.nn.Embedding, not Scaled"),
        (nn.Embedding(5, 4, max_norm=1.0), "no embedding with max_norm or sparse gradients"),
        (nn.Embedding(5, 4, sparse=True), "no embedding with max_norm or sparse gradients"),
    ],
)
def test_an_embedding_that_changes_its_table_is_refused(embedding: nn.Embedding, says: str) -> None:
    before = dict(embedding.state_dict())
    with pytest.raises(TypeError, match=says):
        LoraEmbedding.adapt(embedding, LoraSettings(2, 4.0))
    assert embedding.state_dict().keys() == before.keys()


def test_layers_of_both_scalings_are_in_one_file_and_compute_the_same(tmp_path: Path) -> None:
    model, other = small_model("bert"), small_model("bert")
    add_lora(model, ["query"], r=4, alpha=8)
    add_lora(model, ["value"], r=4, alpha=8, use_rslora=True)
    scramble_all(model)
    save_lora(model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["use_rslora"] is False
    load_lora(other, tmp_path)
    ids, _ = some_ids()
    with torch.no_grad():
        assert torch.allclose(other.eval()(input_ids=ids), model.eval()(input_ids=ids), atol=1e-6)
