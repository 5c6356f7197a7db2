"""A program that uses the public types of flodl. Type checkers must report nothing."""

from pathlib import Path

import torch
from torch import Tensor, nn

import flodl
from fdl import FdlArgs, FdlError, option
from flodl import FlowBuilder, Graph, RunDirectory, TensorDataSet, Trainer
from flodl.hf import AutoConfig


class Args(FdlArgs):
    """Train a model."""

    epochs: int = option(default=3, help="Passes over the data")
    output: Path = option(default=Path("runs"), help="Folder of the runs")


def make_model(device: torch.device) -> nn.Module:
    """One layer."""
    return nn.Linear(1, 1).to(device)


def train_step(model: nn.Module, batch: flodl.Batch) -> Tensor:
    """The loss of one batch."""
    output: Tensor = model(batch["x"])
    return output.square().mean()


def main() -> Path:
    """Train, and return the folder of the run."""
    args = Args.parse_or_schema()
    epochs: int = args.epochs
    data = TensorDataSet(torch.zeros(8, 1), names=["x"])
    trainer = Trainer.builder(make_model, torch.optim.SGD, train_step)
    trainer.dataset(data).batch_size(4).num_epochs(epochs)
    run = RunDirectory.create(args.output)
    trainer.run_dir(run).run().join()
    return run.path


def graph() -> Graph:
    """Two layers as a graph."""
    return FlowBuilder.from_(nn.Linear(1, 2)).through(nn.Linear(2, 1)).build()


def family(folder: str) -> str:
    """The kind of a model, or an error of the command line."""
    if not folder:
        raise FdlError("no folder", hint="name one")
    return type(AutoConfig.from_pretrained(folder)).__name__
