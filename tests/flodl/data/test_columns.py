"""Whole tensors and arrays as a data set: a tuple, or a dictionary with names."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, DataLoader
from flodl.errors import DataError
from tests.rows import each_row


@each_row("kind", ["tensors", "arrays", "both", "memory map"])
def test_a_tuple_is_a_field_per_member(kind: str, tmp_path: Path) -> None:
    x: Tensor | np.ndarray = torch.arange(12).reshape(6, 2)  # type: ignore[type-arg]
    y: Tensor | np.ndarray = torch.arange(6.0)  # type: ignore[type-arg]
    if kind != "tensors":
        x = np.arange(12).reshape(6, 2)
    if kind == "arrays":
        y = np.arange(6.0, dtype=np.float32)
    if kind == "memory map":
        np.save(tmp_path / "x.npy", x)
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
    loader = DataLoader((x, y), 3, shuffle=False)
    assert loader.is_resident
    assert loader.names == ("0", "1")
    first, second = loader.epoch(0)
    assert first[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert second[1].tolist() == [3, 4, 5]
    assert second[1].dtype == torch.float32


def test_a_dictionary_names_the_fields() -> None:
    x, y = torch.arange(4), np.arange(4) * 10
    loader = DataLoader({"x": x, "y": y}, 2, shuffle=False)
    assert loader.names == ("x", "y")
    assert next(loader.epoch(0))["y"].tolist() == [0, 10]
    ordered = DataLoader({"x": x, "y": y}, 2, shuffle=False, names=["y", "x"])
    assert ordered.names == ("y", "x")
    assert next(ordered.epoch(0))[0].tolist() == [0, 10]
    renamed = DataLoader({"x": x, "y": y}, 2, shuffle=False, names=["a", "b"])
    assert next(renamed.epoch(0))["b"].tolist() == [0, 10]
    pair = namedtuple("pair", ["x", "y"])
    assert DataLoader(pair(x, x), 2).names == ("x", "y")


def test_members_of_different_lengths_are_refused_with_the_lengths() -> None:
    x, y = torch.arange(4), torch.arange(5)
    with pytest.raises(DataError, match=r"one common length in dimension 0: 'x' has 4, 'y' has 5"):
        DataLoader({"x": x, "y": y}, 2)
    with pytest.raises(DataError, match="'0' has 4, '1' has 5"):
        DataLoader((x, y.numpy()), 2)
    with pytest.raises(DataError, match="'1' has 0"):
        DataLoader((x, torch.tensor(1)), 2)


def test_members_that_are_no_tensors_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="member '1' of the tuple is a list and others are tensors"):
        DataLoader((torch.arange(2), [0, 1]), 2)
    with pytest.raises(TypeError, match="member 'y' of the dictionary is a list"):
        DataLoader({"x": torch.arange(2), "y": [0, 1]}, 2)
    with pytest.raises(DataError, match="torch has no tensor for <U1"):
        DataLoader((torch.arange(2), np.array(["a", "b"])), 2)


def test_a_list_of_samples_stays_a_list_of_samples() -> None:
    samples = [torch.arange(3), torch.arange(3) + 3]
    assert next(DataLoader(samples, 2, shuffle=False).epoch(0))[0].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    pairs = ((torch.tensor(1), 10), (torch.tensor(2), 20))
    assert next(DataLoader(pairs, 2, shuffle=False).epoch(0))[1].tolist() == [10, 20]


def test_a_trainer_takes_both() -> None:
    x = torch.linspace(-1, 1, 16).unsqueeze(1)

    def by_place(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def by_name(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    weights = []
    for data, step in (((x, 3 * x), by_place), ({"x": x, "y": 3 * x}, by_name)):
        builder = Trainer.builder(
            lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, lr=0.1), step
        )
        trained = builder.dataset(data).batch_size(4).num_epochs(5).device("cpu").run()
        weights.append(trained.model.state_dict()["weight"].item())
    assert weights[0] == weights[1]
    with pytest.raises(DataError, match="'x' has 16, 'y' has 15"):
        builder.dataset({"x": x, "y": x[1:]}).run()


def test_a_class_instead_of_an_object_is_refused() -> None:
    class Numbers:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(TypeError, match=r"Numbers is a class.*pass an object, Numbers\(…\)"):
        DataLoader(Numbers, 2)
