"""The eight models: their size, their training step, their judgement."""

from pathlib import Path

import pytest
import torch

from flodl.ddp_bench.data import load, prepare
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.models.task import ACCURACY, CHARACTER_LOSS, SQUARED_ERROR

PARAMETERS = {
    "logistic": 7_850,
    "mlp": 203_530,
    "lenet": 44_470,
    "resnet": 272_474,
    "resnet-graph": 272_474,
    "char-rnn": 946_625,
    "gpt-nano": 826_433,
    "conv-ae": 9_569,
}


@pytest.mark.case("distributed", 54)
def test_every_model_has_its_number_of_parameters():
    built = {name: task.build() for name, task in TASKS.items()}
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}
    assert counts == PARAMETERS


@pytest.mark.parametrize("name", TASKS)
def test_a_step_gives_every_parameter_a_gradient(name):
    task = TASKS[name]
    data = load(task.data, "synthetic", Path("nowhere"), batches=1, batch_size=4)
    inputs, target = prepare(task, *data.train.tensors, training=True)
    model = task.build()
    task.loss(model, model(inputs), target).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_graph_computes_what_the_module_computes():
    module, graph = TASKS["resnet"].build(), TASKS["resnet-graph"].build()
    # The graph registers the shortcut of a block before its convolutions, or behind them.
    own = {tuple(p.shape): 0 for p in module.parameters()}
    assert own.keys() == {tuple(p.shape) for p in graph.parameters()}
    with torch.no_grad():
        for model in (module, graph):
            for p in model.parameters():
                p.copy_(torch.linspace(-0.1, 0.2, p.numel()).view(p.shape))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(module.eval()(images), graph.eval()(images))


def test_the_graph_records_its_training_accuracy():
    task = TASKS["resnet-graph"]
    model = task.build()
    target = torch.tensor([0, 1])
    output = torch.zeros(2, 10, requires_grad=True)
    with torch.no_grad():
        output[:, 0] = 1
    task.loss(model, output, target)
    model.end_epoch()
    assert model.latest_metrics() == [("train_acc", 0.5)]


def test_a_character_does_not_see_what_follows():
    model = TASKS["gpt-nano"].build().eval()
    text = torch.randint(0, 65, (1, 32))
    other = text.clone()
    other[0, 20:] = (other[0, 20:] + 1) % 65
    with torch.no_grad():
        before, after = model(text), model(other)
    torch.testing.assert_close(before[0, :20], after[0, :20])
    assert not torch.allclose(before[0, 20:], after[0, 20:])


def test_judgements_are_sums_and_counts():
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    hits, count = ACCURACY.terms(logits, torch.tensor([0, 1, 1]))
    assert (int(hits), count) == (2, 3)
    text, following = torch.zeros(2, 4, 65), torch.zeros(2, 4, dtype=torch.int64)
    total, count = CHARACTER_LOSS.terms(text, following)
    assert count == 8
    assert float(total) == pytest.approx(8 * torch.log(torch.tensor(65.0)).item())
    total, count = SQUARED_ERROR.terms(torch.ones(2, 3), torch.zeros(2, 3))
    assert (float(total), count) == (6.0, 6)


def test_the_rate_of_resnet_falls_at_a_half_and_three_quarters():
    schedule = TASKS["resnet"].schedule(0.1, 1000)
    rates = [schedule.lr(step) for step in (0, 499, 500, 749, 750, 999)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_rate_of_gpt_rises_for_a_fifth_and_falls_to_almost_nothing():
    schedule = TASKS["gpt-nano"].schedule(3e-4, 1000)
    assert schedule.lr(0) == pytest.approx(3e-4 / 200)
    assert schedule.lr(199) == pytest.approx(3e-4)
    assert schedule.lr(999) == pytest.approx(1e-5, rel=1e-2)
    for batches in (1, 4, 5):
        assert TASKS["gpt-nano"].schedule(3e-4, batches).lr(batches - 1) > 0
