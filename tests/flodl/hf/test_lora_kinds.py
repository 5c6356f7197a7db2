"""Trained biases beside PEFT: files go both ways; outputs and gradients agree."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from flodl.errors import PathError
from flodl.graph import Graph
from flodl.hf.errors import ConfigError
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import LoraLinear, add_lora, merge_lora, unmerge_lora
from flodl.hf.lora_files import load_lora, save_lora
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids
from tests.flodl.hf.test_lora import gap, output, stored, targets, trained, values
from tests.flodl.hf.test_lora_peft import attended, output_of, peft, reference
from tests.rows import each_row

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

KINDS: dict[str, dict[str, Any]] = {
    "all biases": {"bias": "all"},
    "biases of adapted layers": {"bias": "lora_only"},
    "everything": {"bias": "all", "use_rslora": True},
}
FEW = [("bert", name) for name in KINDS] + [("albert", "everything"), ("distilbert", "everything")]


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
    names: list[str] | None = None,
) -> Any:
    """Adapters of a classifier, saved by PEFT, and the model they are of."""
    settings = peft().LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=names or targets(family),
        task_type="SEQ_CLS",
        **kind,
    )
    plain = reference(small_model(family, HeadKind.SEQCLS), HeadKind.SEQCLS)
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
    add_lora(graph, targets(family), r=3, alpha=5, **kind)
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
    add_lora(graph, targets("roberta"), r=3, **kind)
    scramble_all(graph)
    adapted, held = output(graph), values(graph)
    merge_lora(graph)
    assert list(graph.state_dict()) == keys
    assert not any(isinstance(module, LoraLinear) for module in graph.modules())
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
    graph = small_model(family, HeadKind.TOKCLS, seed=seed)
    plain = reference(graph, HeadKind.TOKCLS)
    add_lora(graph, targets(family), r=3, alpha=5, **kind)
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


@each_row("names", [["word_embeddings"], ["query", "token_type_embeddings"]])
def test_the_change_of_an_embedding_is_refused_with_the_way_to_use_it(names: list[str]) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(PathError, match=r"no linear layer is called '[a-z_]+_embeddings'"):
        add_lora(graph, names)
    with tempfile.TemporaryDirectory() as folder:
        by_peft("bert", {}, Path(folder), names)
        with pytest.raises(ConfigError, match=r"adapts the embedding 'bert.embeddings.*merge the"):
            load_lora(graph, folder)
    assert not any(isinstance(module, LoraLinear) for module in graph.modules())


def test_dora_is_refused_with_the_way_to_use_it(tmp_path: Path) -> None:
    by_peft("bert", {"use_dora": True}, tmp_path)
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(ConfigError, match=r"use_dora is True, .* merge the adapters with PEFT"):
        load_lora(graph, tmp_path)
    assert not any(isinstance(module, LoraLinear) for module in graph.modules())


def test_an_unknown_choice_of_biases_is_refused() -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    with pytest.raises(ValueError, match="bias='some': it is 'none', 'all' or 'lora_only'"):
        add_lora(graph, "query", bias="some")  # type: ignore[arg-type]


def test_a_weight_that_peft_saved_as_well_must_be_that_of_the_model(tmp_path: Path) -> None:
    add_lora(graph := small_model("bert", HeadKind.SEQCLS), "query")
    save_lora(graph, tmp_path)
    name = "bert.encoder.layer.0.attention.self.query"
    weight = graph.get_parameter(f"{name}.weight").detach().clone()
    file = tmp_path / "adapter_model.safetensors"
    save_file({**stored(tmp_path), f"base_model.model.{name}.base_layer.weight": weight}, file)
    again = small_model("bert", HeadKind.SEQCLS)
    load_lora(again, tmp_path)
    assert f"{name}.weight" not in trained(again)
    with pytest.raises(ConfigError, match="differs from the weight of the model"):
        load_lora(small_model("bert", HeadKind.SEQCLS, seed=9), tmp_path)


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    graph: Graph = small_model("bert", HeadKind.SEQCLS)
    add_lora(graph, ["query", "value"])
    save_lora(graph, tmp_path)
    other = small_model("bert", HeadKind.SEQCLS)
    torch.manual_seed(1)
    load_lora(other, tmp_path)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))


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
