"""What a builder does with the samples that do not fill a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch
from flodl.train import TrainerBuilder

from .programs import line, network, sgd, squared_error, training


class Seen:
    """A step that keeps the samples of each batch."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = []

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.batches.append(batch["x"].flatten().clone())
        return squared_error(model, batch)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def plain(_: object) -> nn.Module:
    return nn.Linear(1, 1)


def trained(model: Any, step: Any, n: int, batch_size: int) -> TrainerBuilder:
    builder = Trainer.builder(model, sgd, step).dataset(line(n)).batch_size(batch_size)
    return builder.num_epochs(2).device("cpu").engine("eager")


def test_every_sample_is_trained_on_once_in_every_epoch() -> None:
    seen = Seen()
    metrics = trained(network, seen, 1003, 16).run().poll_metrics()
    assert seen.sizes == 2 * (62 * [16] + [11])
    samples = line(1003).tensors[0].flatten()
    for epoch in (seen.batches[:63], seen.batches[63:]):
        assert torch.equal(torch.cat(epoch).sort().values, samples)
    assert [one.throughput * one.epoch_ms for one in metrics] == pytest.approx([1003, 1003])


@pytest.mark.parametrize(
    ("n", "sizes"), [(32, [16, 16]), (33, [16, 17]), (34, [16, 16, 2]), (31, [16, 15])]
)
def test_a_single_remaining_sample_joins_the_batch_before_it(
    n: int, sizes: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    trained(network, seen, n, 16).run()  # normalises over the batch
    assert seen.sizes == 2 * sizes
    assert "single sample" not in capfd.readouterr().err


def test_the_incomplete_batch_is_left_out_where_that_is_asked_for() -> None:
    seen = Seen()
    trained(plain, seen, 1003, 16).loader_options(drop_last=True).run()
    assert seen.sizes == 2 * 62 * [16]


def test_a_batch_larger_than_the_data_set_is_the_data_set() -> None:
    seen = Seen()
    trained(plain, seen, 10, 11).run()
    assert seen.sizes == [10, 10]


def test_a_batch_that_is_never_full_is_refused_before_anything_is_built() -> None:
    def never(*_: object) -> Any:
        raise AssertionError("nothing may be built")

    builder = trained(never, never, 10, 11).loader_options(drop_last=True)
    with pytest.raises(ValueError, match=r"batch_size=11 is larger than the data set \(10 samples"):
        builder.run()


def test_a_trailing_batch_of_one_under_batch_norm_is_warned_of(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        training().loader_options(join_remainder=False).run()
    said = capfd.readouterr().err
    assert "single sample (10 samples, batch_size=3) and 1 normalises over the batch" in said
    assert "join_remainder=True" in said
    assert "drop_last=True" in said


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(training(n=11).loader_options(join_remainder=False), id="two are left"),
        pytest.param(training(n=9).loader_options(join_remainder=False), id="none is left"),
        pytest.param(
            training().loader_options(join_remainder=False, drop_last=True), id="it is left out"
        ),
        pytest.param(
            trained(plain, squared_error, 10, 3).loader_options(join_remainder=False),
            id="nothing is normalised",
        ),
    ],
)
def test_another_last_batch_is_not_warned_of(
    builder: TrainerBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    builder.run()
    assert "single sample" not in capfd.readouterr().err
