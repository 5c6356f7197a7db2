"""The ten networks of the benchmark are the ones it names, and every subject computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.rows import Kept
from benchmarks.ten_models import place
from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_page import Row, page
from benchmarks.ten_models_subject import ByHand, Eager, Flodl
from benchmarks.ten_models_tuned import RECIPES, Recipe, variants

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


def rewrites(name: str) -> set[Callable[[nn.Module], nn.Module]]:
    return {recipe.rewrite for recipe in RECIPES[name] if recipe.rewrite is not None}


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


def recipes(name: str) -> list[Recipe]:
    """The variants that need no other heap, route or compiler."""
    found = variants(name, routing=False, compiling=False)
    return [recipe for recipe in found if recipe.heap]


@pytest.mark.parametrize("name", PARAMETERS)
def test_tuning_by_hand_and_the_engine_train_as_plain_torch_does(name: str) -> None:
    small, device = networks(small=True)[name], torch.device("cpu")
    hands = [ByHand(small, device, 3, recipe) for recipe in recipes(name)]
    subjects = [Eager(small, device, 3), *hands, Flodl(small, device, 3, "eager")]
    first = [subject.loss() for subject in subjects]
    for subject in subjects:
        subject.train(10)
    plain, *others = (subject.loss() for subject in subjects)
    assert first == pytest.approx([first[0]] * len(first), rel=1e-5)
    assert plain != pytest.approx(first[0], rel=1e-3)
    assert others == pytest.approx([plain] * len(others), rel=1e-4)


def test_each_variant_by_hand_is_there_once_and_compiles_only_where_it_may() -> None:
    for name in PARAMETERS:
        every = variants(name, routing=True, compiling=True)
        assert len(set(every)) == len(every) >= 4
        assert any(recipe.compiled for recipe in every)
        assert not any(recipe.compiled for recipe in variants(name, routing=True, compiling=False))
        unrouted = variants(name, routing=False, compiling=True)
        assert not any(recipe.route for recipe in unrouted)
        assert len(set(unrouted)) == len(unrouted)
    assert str(Recipe(heap=False, compiled=True)) == "fused Adam + compiled"


@pytest.mark.parametrize("name", [name for name in PARAMETERS if rewrites(name)])
def test_rewritten_modules_have_the_gradients_of_the_plain_ones(name: str) -> None:
    small, [rewrite] = networks(small=True)[name], rewrites(name)
    plain, batch = small.build(), small.data(batches=1)[0]
    rewritten = rewrite(small.build())
    assert count(rewritten) == count(plain)
    losses = [small.loss(model, batch) for model in (plain, rewritten)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    norms = [
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        for model in (plain, rewritten)
    ]
    assert norms[1].item() == pytest.approx(norms[0].item(), rel=1e-5)


def meta_network(name: str) -> nn.Module:
    with torch.device("meta"):
        return networks()[name].network()


def measured(total: float, by_hand: dict[str, float]) -> Row:
    """A row of one column."""
    return {
        "ms": 10.0,
        "step": total,
        "spread": "0.8 … 0.9",
        "total": total,
        "begin_steps": 30,
        "by_hand": by_hand,
        "report": {"tuning": ["fused optimizer"]},
        "steps": 5,
        "rounds": 3,
        "environment": "here, 2030-01-01",
    }


def test_the_page_takes_the_better_column_and_the_best_variant_by_hand() -> None:
    agreed, apart = {"loss": 1e-6, "weights": 1e-7}, {"loss": 2e-5, "weights": 3e-6}
    parts = {
        "auto": measured(0.9, {"fused Adam": 0.95, "rewritten": 0.8}),
        "pure": measured(0.85, {"fused Adam": 0.95, "compiled": 1.0}),
        "agreement": {
            "steps": 30,
            "flodl": agreed,
            "by_hand": {"fused Adam": agreed, "routed": apart},
        },
    }
    slow = {"auto": measured(1.2, {"fused Adam": 1.0})}
    text = page({"no_routing": {"mlp": parts, "convnet": slow}}, "the command")
    assert (
        "| 0.900, 1.02 PASS | 0.850 | 0.850, 1.02 PASS | 0.950 | 0.895 | 1.0e-06, 0.0001 PASS |"
        in text
    )
    assert "| 1.200, 1.02 MISSED | not measured yet | 1.200, 1.02 MISSED | 1.000 | 1.200 |" in text
    assert "better column 1.010 (bar without routing: 0.85 MISSED)" in text
    assert "better / by hand 1.036 (bar 1.00 MISSED)" in text
    assert "auto 1.039 (bar 0.82 MISSED) beside 0.894 by hand (2 models)" in text


def test_the_page_keeps_what_the_engine_reached_before() -> None:
    here = {"environment": "here"}
    text = page(
        {"before": {"mlp": {"auto": 0.8, "pure": 0.7, **here}, "b": {"auto": 0.7, **here}}}, ""
    )
    assert "| mlp | 0.800 | 0.700 | here |" in text
    assert "| b | 0.700 |  | here |" in text
    assert "auto 0.748 (bar 0.82 PASS), better column 0.700" in text


def test_rows_of_several_runs_are_kept_together(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for mode, name, part, total in (
        ("routing", "mlp", "auto", 1),
        ("routing", "mlp", "pure", 2),
        ("routing", "convnet", "auto", 3),
        ("no_routing", "mlp", "auto", 4),
    ):
        place(Kept.beside(page), mode, name, part, {"total": total})
    assert Kept.beside(page).rows == {
        "routing": {
            "mlp": {"auto": {"total": 1}, "pure": {"total": 2}},
            "convnet": {"auto": {"total": 3}},
        },
        "no_routing": {"mlp": {"auto": {"total": 4}}},
    }
