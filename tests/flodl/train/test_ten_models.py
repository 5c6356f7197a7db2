"""The ten networks of the benchmark are the ones it names, and every subject computes the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_subject import ByHand, Eager, Flodl
from benchmarks.ten_models_tuned import RECIPES

PARAMETERS = {
    "mlp": 16_802_816,
    "convnet": 3_965_028,
    "gru_seq": 1_314_048,
    "transformer": 21_071_872,
    "lstm_seq": 3_809_536,
    "conv_autoenc": 5_515_395,
    "residual_tower": 14_718_976,
    "gated_routing": 2_638_856,
    "iterative_refine": 3_152_896,
    "feedback_fixed": 790_016,
}

SHAPES = {
    "mlp": ([256, 1024], [256, 1024]),
    "convnet": ([128, 3, 64, 64], [128, 100]),
    "gru_seq": ([128, 50, 256], [128, 256]),
    "transformer": ([32, 128], [32, 128]),
    "lstm_seq": ([128, 50, 256], [128, 256]),
    "conv_autoenc": ([64, 3, 64, 64], [64, 3, 64, 64]),
    "residual_tower": ([256, 1024], [256, 1024]),
    "gated_routing": ([256, 512], [256, 512]),
    "iterative_refine": ([256, 1024], [256, 1024]),
    "feedback_fixed": ([128, 512], [128, 512]),
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_ten_networks_have_the_parameters_of_the_table() -> None:
    with torch.device("meta"):
        counted = {name: count(each.network()) for name, each in networks().items()}
    assert counted == PARAMETERS


def test_their_batches_have_the_shapes_of_the_table() -> None:
    drawn = {name: each.data(batches=1)[0] for name, each in networks().items()}
    assert {name: (list(x.shape), list(y.shape)) for name, (x, y) in drawn.items()} == SHAPES
    assert {name: each.lr for name, each in networks().items() if each.lr != 1e-3} == {
        "transformer": 1e-4
    }


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_small_network_is_the_same_again_and_learns(name: str) -> None:
    small = networks(small=True)[name]
    weights = [small.build().state_dict() for _ in range(2)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    (x, y), (again, _) = small.data(batches=1)[0], small.data(batches=2)[0]
    assert torch.equal(x, again)
    assert not torch.equal(x, small.data(batches=2)[1][0])

    model = small.build()
    assert [type(m) for m in model.modules()] == [
        type(m) for m in torch.nn.Module.modules(meta_network(name))
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = small.loss(model, (x, y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", [name for name in PARAMETERS if not RECIPES[name].compiled])
def test_tuning_by_hand_and_the_engine_train_as_plain_torch_does(name: str) -> None:
    small, device = networks(small=True)[name], torch.device("cpu")
    subjects = [
        Eager(small, device, 3),
        ByHand(small, device, 3, tuned=True, route=False),
        Flodl(small, device, 3, "eager"),
    ]
    first = [subject.loss() for subject in subjects]
    for subject in subjects:
        subject.train(10)
    plain, tuned, engine = (subject.loss() for subject in subjects)
    assert first == pytest.approx([first[0]] * 3, rel=1e-5)
    assert plain != pytest.approx(first[0], rel=1e-3)
    assert tuned == pytest.approx(plain, rel=1e-4)
    assert engine == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("name", ["transformer", "gated_routing"])
def test_rewritten_modules_that_are_also_compiled_compute_the_same(name: str) -> None:
    small, rewrite = networks(small=True)[name], RECIPES[name].rewrite
    assert rewrite is not None
    plain, batch = small.build(), small.data(batches=1)[0]
    rewritten = rewrite(small.build())
    assert count(rewritten) == count(plain)
    losses = [small.loss(model, batch) for model in (plain, rewritten)]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    norms = [
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        for model in (plain, rewritten)
    ]
    assert norms[1].item() == pytest.approx(norms[0].item(), rel=1e-5)


def meta_network(name: str) -> nn.Module:
    with torch.device("meta"):
        return networks()[name].network()
