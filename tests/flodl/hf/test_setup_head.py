"""Fine-tuning a head in your own loop."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import SetupConfig, Trainer
from flodl.data import TensorDataSet
from flodl.graph import Graph
from flodl.hf.auto import BertForSequenceClassification
from flodl.hf.build import build
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.nn import clip_grad_norm
from flodl.ranks.group import Group
from flodl.ranks.settings import DdpConfig
from flodl.train.plain_loop.setup import model_of, prepare
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models_material import FAMILIES, small_config, small_model, some_ids

CPU = SetupConfig(device="cpu")
LABELS = torch.tensor([0, 1, 1, 0])


class Head:
    """What a task head is to a loop: a graph and a loss."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def compute_loss(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.graph(ids, mask), labels)


def values(graph: Graph) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in graph.state_dict().items()}


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def uncalled(device: torch.device) -> nn.Module:
    raise AssertionError(f"nothing is to be made on {device}")


def batches(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [some_ids(seed=number) for number in range(count)]


def by_hand(graph: Graph) -> list[float]:
    """The same training in torch alone."""
    graph.train()
    optimizer = adam(list(graph.parameters()))
    losses = []
    for ids, mask in batches():
        loss = nn.functional.cross_entropy(graph(ids, mask), LABELS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(graph.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.case("hf", 44)
def test_a_fine_tuned_task_head_follows_the_loop_in_plain_torch() -> None:
    config = small_config("bert", HeadKind.SEQCLS)
    torch.manual_seed(0)
    head = BertForSequenceClassification.from_config(config, num_labels=2)
    expected = by_hand(copy.deepcopy(head.graph))

    setup = Trainer.setup_head(head, uncalled, adam, config=CPU)
    assert setup.graph is head.graph
    assert head.graph.training
    losses = []
    for ids, mask in batches():
        loss = head.compute_loss(batch_of_ids(ids, mask), LABELS)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm(head.graph.parameters(), 1.0)
        head.graph.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-6)
    assert len(set(losses)) == 5
    assert setup.training_step == head.graph.training_step == 5


def test_a_head_is_trained_as_a_module_with_the_same_losses() -> None:
    torch.manual_seed(0)
    head = BertForSequenceClassification.from_config(
        small_config("bert", HeadKind.SEQCLS), num_labels=2
    )
    again = copy.deepcopy(head)
    expected = by_hand(copy.deepcopy(head.graph))

    setup = Trainer.setup(head, None, adam, device="cpu")
    assert setup.model is head
    losses = []
    for ids, mask in batches():
        loss = setup(input_ids=ids, attention_mask=mask, labels=LABELS).loss
        loss.backward()
        clip_grad_norm(head.parameters(), 1.0)
        setup.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-6)

    ids, mask = (torch.cat(rows) for rows in zip(*batches(), strict=True))
    data = TensorDataSet(ids, mask, LABELS.repeat(5), names=("ids", "mask", "labels"))
    run = (
        Trainer.builder(
            again, adam, lambda model, b: model(b["ids"], b["mask"], labels=b["labels"]).loss
        )
        .dataset(data)
        .loader_options(shuffle=False)
        .batch_size(4)
        .num_epochs(1)
        .max_grad_norm(1.0)
        .device("cpu")
        .engine("eager")
        .run()
    )
    assert run.model is again
    (found,) = (one.avg_loss for one in run.poll_metrics())
    assert found == pytest.approx(sum(expected) / 5, abs=1e-6)


def test_a_graph_is_a_head_of_its_own() -> None:
    graph = small_model("distilbert")
    assert model_of(graph) is graph
    assert Trainer.setup_head(graph, None, adam, config=CPU).model is graph


@pytest.mark.parametrize("config", [CPU, DdpConfig()])
def test_where_and_how_much_is_trained_is_told(
    config: SetupConfig | DdpConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = small_model("bert", HeadKind.SEQCLS)
    graph.freeze("bert")
    total = sum(parameter.numel() for parameter in graph.parameters())
    Trainer.setup_head(Head(graph), None, adam, config=config)
    assert f"training on cpu: 34 of {total:,} parameters\n" in capsys.readouterr().out


def test_a_head_without_values_is_refused() -> None:
    config = small_config("bert", HeadKind.SEQCLS)
    graph = build(config, HeadKind.SEQCLS, device="meta")
    with pytest.raises(ValueError, match="have no values"):
        Trainer.setup_head(Head(graph), uncalled, adam)


@pytest.mark.parametrize("head", [3, Head(None)])  # type: ignore[arg-type]
def test_what_has_no_graph_is_no_head(head: Any) -> None:
    with pytest.raises(TypeError, match=r"an object whose .graph is a torch.nn.Module"):
        Trainer.setup_head(head, None, adam)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fine_tuned_model_is_rebuilt_from_its_checkpoint_and_the_file_beside_it(
    family: str, tmp_path: Path
) -> None:
    graph = small_model(family, HeadKind.SEQCLS)
    fresh = values(graph)
    Trainer.setup_head(graph, None, adam, config=CPU)
    for ids, mask in batches(3):
        Head(graph).compute_loss(ids, mask, LABELS).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm(graph.parameters(), 1.0)
        graph.step()
    graph.eval()
    assert all(not torch.equal(values(graph)[n], v) for n, v in fresh.items() if "classifier" in n)
    graph.save_checkpoint(tmp_path / "tuned.fdl")

    text = (tmp_path / "tuned.config.json").read_text()
    assert text == graph.source_config
    config = AutoConfig.from_json_str(text)
    other = build(config, HeadKind.SEQCLS, device="cpu").eval()
    assert other.structural_hash() == graph.structural_hash()
    assert other.structural_hash() != small_model(family).structural_hash()
    report = other.load_checkpoint(tmp_path / "tuned.fdl")
    assert not report.missing
    ids, mask = some_ids()
    assert torch.equal(other(ids, mask), graph(ids, mask))

    transformers = importlib.import_module("transformers")
    settings = transformers.AutoConfig.for_model(**json.loads(text))
    reference = transformers.AutoModelForSequenceClassification.from_config(settings)
    reference.load_state_dict(other.state_dict(), strict=True)
    theirs = reference.eval()(input_ids=ids, attention_mask=mask).logits
    assert (theirs - graph(ids, mask)).abs().max().item() <= 1e-5


# --- On many ranks ---------------------------------------------------------------------------


def trained_on(group: Group) -> list[float]:
    graph = small_model("bert", HeadKind.SEQCLS, seed=group.rank)
    head = Head(model_of(graph))  # type: ignore[arg-type]
    setup = prepare(head.graph, None, adam, CPU, group)
    losses = []
    for ids, mask in batches():
        loss = head.compute_loss(ids, mask, LABELS)
        loss.backward()  # type: ignore[no-untyped-call]
        setup.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_the_same_loop_on_two_ranks_gives_the_same_curve() -> None:
    ranks = Ranks()
    try:
        first, second = ranks(2, trained_on)
    finally:
        ranks.close()
    graph = small_model("bert", HeadKind.SEQCLS).train()
    optimizer = adam(list(graph.parameters()))
    expected = []
    for ids, mask in batches():
        loss = nn.functional.cross_entropy(graph(ids, mask), LABELS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append(loss.item())
    assert first == second == pytest.approx(expected, abs=1e-5)
