"""A batch that a rank computes in pieces: the step stays the same, and fits the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer
from flodl.ranks.group import Group, LocalGroup
from flodl.train.micro_batch import largest_micro_batch
from flodl.train.peak_memory import PeakMemory
from flodl.train.run.verify import verify_run
from flodl.train.runner import carry_out
from flodl.train.step.halves import pieces
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, plan_of, sgd, train
from tests.rows import each_row


def split(group: Group, policy: str, sizes: list[int | str | None], accumulate: int) -> Outcome:
    return train(
        group,
        n=210,
        policy=policy,
        settings={"micro_batch": sizes[group.rank]},
        builder={"deterministic": True, "accumulate": accumulate},
    )


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_ranks_with_pieces_of_other_sizes_train_the_same_up_to_rounding(
    ranks: Ranks, policy: str, accumulate: int
) -> None:
    whole = ranks(2, split, policy, [None, None], accumulate)
    parts = ranks(2, split, policy, [3, 5], accumulate)
    for one, other in zip(whole, parts, strict=True):
        assert one.samples == other.samples
        assert len(one.batches) < len(other.batches)
        assert one.averages == other.averages
        for mine, theirs in zip(one.params, other.params, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(one.metrics, other.metrics, strict=True):
            assert mine.avg_loss == pytest.approx(theirs.avg_loss, rel=1e-5)


def plain(group: Group, policy: str, sizes: list[int | str | None], root: Path | None) -> Any:
    builder = Trainer.builder(linear, sgd, lambda net, batch: net(batch[0]).square().mean())
    builder.dataset(Numbers(100)).batch_size(8).num_epochs(2).engine("eager").progress(False)
    size = sizes[group.rank]
    builder.ddp({"policy": policy, "simulate_ms": (1.0, 2.0), "micro_batch": size})
    if group.leads and root is not None:
        builder.run_dir(RunDirectory.create(root))
    return carry_out(plan_of(builder), group).join().params


def test_pieces_that_are_a_whole_batch_change_no_bit(ranks: Ranks) -> None:
    whole = ranks(2, plain, "sync", [None, None], None)
    for sizes in ([8, "auto"], ["auto", "auto"]):
        for one, other in zip(whole, ranks(2, plain, "sync", sizes, None), strict=True):
            assert all(map(torch.equal, one, other))


def test_the_ledger_has_each_sample_once(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, plain, "cadence", [3, 5], tmp_path)
    proof = verify_run(next(tmp_path.iterdir()))
    assert proof.proven
    assert proof.samples_once == 200


def test_a_batch_of_any_structure_is_split_by_its_samples() -> None:
    batch: dict[str, Any] = {
        "x": torch.arange(10).view(5, 2), "y": [torch.arange(5)], "scale": torch.ones(3),
        "names": list("abcde"), "texts": tuple("abcde"), "unit": ["m"],
    }  # fmt: skip
    found = list(pieces(batch, 2))
    assert [part for _, part in found] == pytest.approx([0.4, 0.4, 0.2])
    assert torch.equal(torch.cat([one["x"] for one, _ in found]), batch["x"])
    assert [len(one["y"][0]) for one, _ in found] == [2, 2, 1]
    assert all(len(one["scale"]) == 3 for one, _ in found)
    assert [(one["names"], one["texts"]) for one, _ in found] == [
        (["a", "b"], ("a", "b")), (["c", "d"], ("c", "d")), (["e"], ("e",)),
    ]  # fmt: skip
    assert all(one["unit"] == ["m"] for one, _ in found)


@each_row(
    ("most", "sizes"),
    [(4, [4, 3, 2]), (3, [3, 3, 3]), (8, [7, 2]), (9, [9]), (2, [2, 2, 2, 2, 1])],
)
def test_a_piece_is_a_single_sample_only_if_the_others_cannot_spare_one(
    most: int, sizes: list[int]
) -> None:
    found = list(pieces(torch.arange(9), most))
    assert [len(one) for one, _ in found] == sizes
    assert torch.equal(torch.cat([one for one, _ in found]), torch.arange(9))
    assert [part for _, part in found] == [size / 9 for size in sizes]


# --- What fits ---------------------------------------------------------------------------------

WIDE = 200_000
"""Values that a sample needs on its way through the model: 0.8 MB each, several times."""


class Wide(nn.Module):
    """A model that needs more memory for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        wide = inputs.sum(1, keepdim=True).expand(-1, WIDE) * self.scale
        return (wide.sin() * wide.cos()).exp().mean(1, keepdim=True)


def measured(mebibytes: int) -> tuple[int | None, Any]:
    builder = Trainer.builder(
        lambda _: Wide(), sgd, lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    )
    builder.dataset(Numbers(256)).batch_size(64).num_epochs(1).engine("eager").progress(False)
    plan = plan_of(builder)

    def alone(short: Any, ledger: Any) -> Any:
        return carry_out(short, LocalGroup(), in_order=True, ledger=ledger)

    torch.manual_seed(3)
    in_use = PeakMemory(torch.device("cpu")).in_use()
    found = largest_micro_batch(plan, alone, in_use + mebibytes * 2**20)
    return found, torch.rand(1).item()


def measured_each(_group: Group, *mebibytes: int) -> list[tuple[int | None, Any]]:
    return [measured(one) for one in mebibytes]


def test_what_fits_grows_with_the_memory_and_draws_no_random_numbers(ranks: Ranks) -> None:
    torch.manual_seed(3)
    drawn = torch.rand(1).item()
    # In a process of its own: what other tests have freed would be used first.
    (found,) = ranks(1, measured_each, 30, 120, 4000)
    sizes = [size for size, _ in found]
    assert sizes[2] is None
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert 1 <= sizes[0] < sizes[1] < 64
    assert all(after == drawn for _, after in found)


def asks(group: Group, engine: str) -> None:
    train(group, settings={"micro_batch": 2}, builder={"engine": engine})


def test_other_engines_are_refused(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="engine='compiled' with micro_batch=2: only the eager"):
        ranks(1, asks, "compiled")


def test_a_size_that_is_no_number_is_refused() -> None:
    for size in (0, "all"):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            Trainer.builder(linear, sgd, lambda *_: None).micro_batch(size)


def test_a_batch_size_that_shall_find_itself_is_told_what_finds_the_pieces() -> None:
    with pytest.raises(ValueError, match=r"give a number.*\.micro_batch\(\"auto\"\)"):
        Trainer.builder(linear, sgd, lambda *_: None).batch_size("auto")
