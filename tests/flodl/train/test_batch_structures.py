"""Batches of any structure, trained as their loader makes them."""

from __future__ import annotations

import collections
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import IterableLoader
from flodl.data.structure import moved, samples_in
from flodl.errors import DivergedError
from flodl.train import RunDirectory, TrainerBuilder
from tests.rows import each_row

from .compiling import compile_with


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Named(Pair):
    """A class derived from a named tuple."""


@dataclass(frozen=True)
class Example:
    x: Tensor
    y: Tensor
    name: str = "one"


class Encoding(UserDict[str, Any]):
    """What tokenizers of other libraries return."""

    def to(self, device: Any) -> Encoding:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class Graphs:
    """A batch of graphs: an object with its tensors in another object, which moves itself."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.store: Any = Encoding(x=x, y=y)
        self.num_graphs = len(y)

    def to(self, device: Any) -> Graphs:
        self.store.to(device)
        return self


Kind = tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], tuple[Tensor, Tensor]]]


def members(batch: Any) -> tuple[Tensor, Tensor]:
    return batch.x, batch.y


def keys(batch: Any) -> tuple[Tensor, Tensor]:
    return batch["x"], batch["y"]


KINDS: dict[str, Kind] = {
    "list": (lambda x, y: [x, y], tuple),  # type: ignore[dict-item]
    "named tuple": (Pair, members),
    "derived named tuple": (Named, members),
    "data class": (Example, members),
    "nested": (lambda x, y: {"in": {"x": x}, "y": (y,)}, lambda b: (b["in"]["x"], b["y"][0])),
    "tensor": (lambda x, y: torch.cat([x, y], 1), lambda b: (b[:, :4], b[:, 4:])),
    "strings": (lambda x, y: {"x": x, "y": y, "ids": ["a"] * len(x)}, keys),
    "none": (lambda x, y: {"x": x, "y": y, "mask": None}, keys),
    "number": (lambda x, y: (x, y, 7, b"raw"), lambda b: b[:2]),
    "boxes": (
        lambda x, y: (list(x), [{"boxes": one} for one in y]),
        lambda b: (torch.stack(b[0]), torch.stack([one["boxes"] for one in b[1]])),
    ),
    "mapping": (lambda x, y: MappingProxyType({"x": x, "y": y}), keys),
    "default dict": (lambda x, y: collections.defaultdict(list, x=x, y=y), keys),
    "encoding": (lambda x, y: Encoding(x=x, y=y), keys),
    "graphs": (Graphs, lambda b: keys(b.store)),
}
MADE: list[Any] = [pytest.param(*kind, id=name) for name, kind in KINDS.items()]


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.linspace(0, 1, 4) + index / 10, torch.tensor([index / 10])


def loader(make: Callable[[Tensor, Tensor], Any], seen: list[Any] | None = None) -> Any:
    def collate(samples: list[Any]) -> Any:
        batch = make(*(torch.stack(part) for part in zip(*samples, strict=True)))
        if seen is not None:
            seen.append(batch)
        return batch

    return torch.utils.data.DataLoader(Points(), batch_size=4, collate_fn=collate)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 1)


def training(read: Callable[[Any], Any], data: Any, got: list[Any] | None = None) -> TrainerBuilder:
    def step(model: nn.Module, batch: Any) -> Tensor:
        if got is not None:
            got.append(batch)
        x, y = read(batch)
        return nn.functional.mse_loss(model(x), y)

    builder = Trainer.builder(model(), lambda p: torch.optim.SGD(p, 0.1), step)
    return builder.dataset(data).num_epochs(1).device("cpu").progress(False)


def plain() -> Tensor:
    """The weights after a plain loop over the same data."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in torch.utils.data.DataLoader(Points(), batch_size=4):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return net.weight.detach()  # type: ignore[return-value]


@pytest.mark.parametrize(("make", "read"), MADE)
def test_a_batch_arrives_as_the_object_that_its_loader_made(
    make: Any, read: Any, tmp_path: Path
) -> None:
    made: list[Any] = []
    got: list[Any] = []
    builder = training(read, loader(make, made), got).run_dir(RunDirectory.create(tmp_path))
    trained = builder.eval_fn(lambda net: {"loss": float(net(torch.ones(1, 4)))}).run()
    assert len(made) == 3
    assert all(one is other for one, other in zip(made, got, strict=True))
    assert torch.equal(trained.model.weight, plain())
    (trace,) = tmp_path.rglob("steps.trace")
    assert trace.stat().st_size > 0


@each_row(("make", "read"), MADE)
def test_every_part_with_tensors_is_moved_and_the_rest_stays(make: Any, read: Any) -> None:
    batch = make(torch.ones(3, 4), torch.ones(3, 1))
    device = torch.device("meta")
    there = moved(batch, device, lambda tensor: tensor.to(device))
    assert type(there) is type(batch)
    tensors = there if isinstance(there, tuple) and isinstance(there[0], list) else read(there)
    found = [*tensors[0], *(one["boxes"] for one in tensors[1])] if tensors is there else tensors
    assert {one.device.type for one in found} == {"meta"}


@each_row("accumulate", [1, 2])
@each_row("engine", ["auto", "cuda_graph"])
@each_row("kind", ["named tuple", "strings", "boxes", "graphs"])
def test_engines_take_any_structure(kind: str, engine: str, accumulate: int) -> None:
    make, read = KINDS[kind]
    trained = training(read, loader(make)).engine(engine).accumulate(accumulate).run()
    assert accumulate == 2 or torch.allclose(trained.model.weight, plain())


@pytest.mark.parametrize("kind", ["named tuple", "data class", "nested", "none", "graphs"])
def test_a_compiled_step_reads_any_structure(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_with("eager", monkeypatch)
    make, read = KINDS[kind]
    for engine in ("compiled", "auto"):
        builder = training(read, loader(make)).engine(engine).pure_step()
        assert torch.allclose(builder.run().model.weight, plain())
    assert "cannot be compiled" not in capsys.readouterr().err


def test_the_samples_of_a_batch_are_counted_by_its_first_tensor_or_by_a_function() -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 1)
    for name in KINDS.keys() - {"boxes"}:
        assert samples_in(KINDS[name][0](x, y)) == 3, name
    assert samples_in({"text": ["a", "b"]}, otherwise=2) == 2
    assert samples_in(torch.tensor(1.0)) == 1

    make, read = KINDS["graphs"]
    (metrics,) = training(read, loader(make)).run().poll_metrics()
    assert metrics.throughput * metrics.epoch_ms == pytest.approx(10)
    builder = training(read, loader(make)).batch_size(lambda batch: 2 * batch.num_graphs)
    (metrics,) = builder.run().poll_metrics()
    assert metrics.throughput * metrics.epoch_ms == pytest.approx(20)


class OwnLoader:
    """A loader of a program: it has a length, and no index."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Pair]:
        return iter(Pair(torch.ones(size, 4), torch.ones(size, 1)) for size in (3, 5))


def test_any_iterable_of_batches_trains_with_a_function_that_counts_samples() -> None:
    got: list[Any] = []
    sources: list[Any] = [OwnLoader(), OwnLoader().__iter__, [*OwnLoader()].__iter__]
    for source in sources:
        got.clear()
        trained = training(members, source, got).batch_size(lambda batch: len(batch.x)).run()
        assert [type(one) for one in got] == [Pair, Pair]
        (metrics,) = trained.poll_metrics()
        assert metrics.throughput * metrics.epoch_ms == pytest.approx(8)
    assert IterableLoader(OwnLoader(), len).num_batches == 2


def test_what_does_not_fit_is_refused_with_what_to_do() -> None:
    make, read = KINDS["named tuple"]
    with pytest.raises(ValueError, match=r"a Points has samples and no batches: give \.batch_size"):
        training(read, Points()).batch_size(len).run()
    with pytest.raises(ValueError, match=r"names=.*the DataLoader decides .* over unchanged"):
        training(read, loader(make)).loader_options(names=["a", "b"]).run()
    with pytest.raises(TypeError, match="returned a NoneType for a Pair: return the number of sam"):
        training(read, loader(make)).batch_size(lambda _: None).run()  # type: ignore[arg-type,return-value]


def test_batches_of_worker_processes_train() -> None:
    make, read = KINDS["named tuple"]
    data = torch.utils.data.DataLoader(
        Points(), batch_size=4, num_workers=1, collate_fn=loader(make).collate_fn
    )
    assert torch.equal(training(read, data).run().model.weight, plain())


def test_a_training_that_diverges_names_the_step_of_such_a_batch() -> None:
    def read(batch: Any) -> Any:
        return batch.x * float("nan"), batch.y

    with pytest.raises(DivergedError, match="step 0"):
        training(read, loader(KINDS["data class"][0])).run()
