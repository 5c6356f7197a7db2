"""Adapters next to PEFT: it loads ours, we load its, and the outputs agree."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.errors import ConfigError
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import LoraLinear, add_lora, merge_lora
from flodl.hf.lora_files import load_lora, save_lora
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids
from tests.flodl.hf.test_lora import gap, output, scramble, targets, train
from tests.later import transformers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

_CLASSES = {
    HeadKind.BASE: "AutoModel",
    HeadKind.SEQCLS: "AutoModelForSequenceClassification",
    HeadKind.TOKCLS: "AutoModelForTokenClassification",
    HeadKind.QA: "AutoModelForQuestionAnswering",
    HeadKind.MLM: "AutoModelForMaskedLM",
}


def peft() -> Any:
    """PEFT. Its import takes seconds that every collection of the tests would need.

    pytest looks into the globals of a module, which would wake a lazy module up.
    """
    return importlib.import_module("peft")


def reference(graph: Graph, kind: HeadKind) -> Any:
    """The same model in transformers, with the same weights."""
    fields = json.loads(graph.source_config or "{}")
    made = getattr(transformers, _CLASSES[kind])
    model = made.from_config(transformers.AutoConfig.for_model(**fields))
    model.load_state_dict(graph.state_dict(), strict=True)
    return model.eval()


def output_of(model: Any) -> Tensor:
    ids, mask = some_ids()
    with torch.no_grad():
        result = model(input_ids=ids, attention_mask=mask)
    if "start_logits" in result:
        return torch.stack([result.start_logits, result.end_logits], dim=-1)
    logits: Tensor = result["logits" if "logits" in result else "last_hidden_state"]
    return logits


def attended(result: Tensor) -> Tensor:
    """Without what is said about padding, which means nothing."""
    return result[some_ids()[1] == 1] if result.dim() == 3 else result


def scramble_peft(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
                assert "lora_" in name or "modules_to_save" in name


CELLS = [
    *((family, HeadKind.SEQCLS) for family in FAMILIES),
    *(("bert", kind) for kind in HeadKind if kind is not HeadKind.SEQCLS),
    ("distilbert", HeadKind.MLM),
]


@pytest.mark.case("hf", 46)
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_peft_loads_our_adapters_and_agrees(family: str, kind: HeadKind, tmp_path: Path) -> None:
    graph = small_model(family, kind)
    plain = reference(graph, kind)
    add_lora(graph, targets(family), r=4, alpha=6)
    scramble(graph)
    if kind is HeadKind.SEQCLS:
        train(graph)  # the head as well
    save_lora(graph, tmp_path)
    before = output_of(plain)
    theirs = peft().PeftModel.from_pretrained(plain, tmp_path).eval()
    assert gap(attended(output(graph)), attended(output_of(theirs))) <= 1e-5
    assert gap(attended(output(graph)), attended(before)) > 1e-2
    merge_lora(graph)
    assert gap(attended(output(graph)), attended(output_of(theirs))) <= 1e-5


@pytest.mark.parametrize("start", ["gaussian", "orthogonal", "mica", False])
def test_starts_that_leave_the_weights_alone_are_loaded(start: Any, tmp_path: Path) -> None:
    theirs = saved_by_peft(tmp_path, init_lora_weights=start)
    graph = small_model("bert", HeadKind.SEQCLS)
    load_lora(graph, tmp_path)
    assert gap(output(graph), output_of(theirs.eval())) <= 1e-5


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_starts_that_change_the_weights_are_refused(start: str, tmp_path: Path) -> None:
    saved_by_peft(tmp_path, init_lora_weights=start)
    with pytest.raises(ConfigError, match=f"init_lora_weights is '{start}', for which PEFT"):
        load_lora(small_model("bert", HeadKind.SEQCLS), tmp_path)


def test_a_module_inside_the_encoder_that_came_with_adapters_is_saved_again(tmp_path: Path) -> None:
    theirs = saved_by_peft(tmp_path / "theirs", modules_to_save=["pooler"])
    graph = small_model("bert", HeadKind.SEQCLS)
    load_lora(graph, tmp_path / "theirs")
    assert graph.get_parameter("bert.pooler.dense.weight").requires_grad
    save_lora(graph, tmp_path / "ours")
    other = small_model("bert", HeadKind.SEQCLS)
    load_lora(other, tmp_path / "ours")
    plain = reference(small_model("bert", HeadKind.SEQCLS), HeadKind.SEQCLS)
    again = peft().PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    for model in (output(other), output_of(again)):
        assert gap(model, output_of(theirs.eval())) <= 1e-5


def saved_by_peft(folder: Path, **options: Any) -> Any:
    """Adapters of a BERT with a classifier, saved by PEFT, and the model they are of."""
    settings = peft().LoraConfig(
        r=4, lora_alpha=6, target_modules=["query", "value"], task_type="SEQ_CLS", **options
    )
    plain = reference(small_model("bert", HeadKind.SEQCLS), HeadKind.SEQCLS)
    theirs = peft().get_peft_model(plain, settings)
    scramble_peft(theirs)
    theirs.save_pretrained(str(folder))
    return theirs


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_adapters_of_peft_are_loaded_and_agree(family: str, kind: HeadKind, tmp_path: Path) -> None:
    graph = small_model(family, kind)
    task = {HeadKind.SEQCLS: "SEQ_CLS", HeadKind.TOKCLS: "TOKEN_CLS", HeadKind.QA: "QUESTION_ANS"}
    settings = peft().LoraConfig(
        r=4,
        lora_alpha=6,
        lora_dropout=0.1,
        target_modules=targets(family),
        task_type=task.get(kind),
        rank_pattern={targets(family)[1]: 3},
        alpha_pattern={targets(family)[0]: 9},
    )
    theirs = peft().get_peft_model(reference(graph, kind), settings)
    scramble_peft(theirs)
    theirs.save_pretrained(str(tmp_path))
    load_lora(graph, tmp_path)
    assert gap(attended(output(graph)), attended(output_of(theirs.eval()))) <= 1e-5
    found = {(m.lora.r, m.lora.alpha) for m in graph.modules() if isinstance(m, LoraLinear)}
    assert found == {(4, 9), (3, 6)}


def test_what_differs_between_layers_survives_the_way_through_peft(tmp_path: Path) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    plain = reference(graph, HeadKind.SEQCLS)
    add_lora(graph, ["query", "value"], r=4, alpha=4)
    add_lora(graph, "bert.encoder.layer.1.output.dense", r=2, alpha=10)
    scramble(graph)
    save_lora(graph, tmp_path / "ours")
    theirs = peft().PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    assert gap(output(graph), output_of(theirs)) <= 1e-5
    theirs.save_pretrained(str(tmp_path / "theirs"))
    again = small_model("bert", HeadKind.SEQCLS)
    load_lora(again, tmp_path / "theirs")
    assert gap(output(again), output(graph)) == 0.0


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_scaling_by_the_root_of_the_rank_is_understood(family: str, tmp_path: Path) -> None:
    graph = small_model(family)
    settings = peft().LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=targets(family), task_type=None
    )
    theirs = peft().get_peft_model(reference(graph, HeadKind.BASE), settings)
    scramble_peft(theirs)
    theirs.save_pretrained(str(tmp_path))
    load_lora(graph, tmp_path)
    assert gap(attended(output(graph)), attended(output_of(theirs.eval()))) <= 1e-5
    save_lora(graph, tmp_path / "ours")
    again = peft().PeftModel.from_pretrained(
        reference(small_model(family), HeadKind.BASE), tmp_path / "ours"
    )
    assert gap(attended(output(graph)), attended(output_of(again.eval()))) <= 1e-5


def test_a_fully_merged_model_is_one_of_transformers() -> None:
    graph = small_model("roberta", HeadKind.SEQCLS)
    add_lora(graph, ["query", "key", "value", "dense"], r=2)
    scramble(graph)
    merge_lora(graph)
    assert gap(output(graph), output_of(reference(graph, HeadKind.SEQCLS))) <= 1e-5


def test_peft_says_nothing_about_our_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    graph = small_model("distilbert", HeadKind.SEQCLS)
    plain = reference(graph, HeadKind.SEQCLS)
    add_lora(graph, targets("distilbert"))
    save_lora(graph, tmp_path)
    with caplog.at_level(logging.WARNING):
        peft().PeftModel.from_pretrained(plain, tmp_path)
    told = [str(warning.message) for warning in recwarn.list]
    assert not [text for text in [*told, caplog.text] if "adapter" in text.lower()]
