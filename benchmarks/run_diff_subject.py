"""The program whose trainings ``benchmarks/run_diff.py`` compares; copied into a project."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from fdl import FdlArgs, option
from flodl import Batch, RandomSampler, RunDirectory, Sampler, TensorDataSet, Trainer, entry

SCALE = 1.0
DRAWS = 0
IMAGES, PIXELS = 96, 64
FILE = Path(__file__).with_name("images.bin")
LONG = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
LONG -= LONG.mean()
"""Its sum is nearly 0: what is left are rounding errors, which depend on the number of threads."""


class Args(FdlArgs):
    """Learn the sums of images."""

    epochs: int = option(default=2, help="Passes over the images")
    lr: float = option(default=0.01, help="Learning rate")
    seed: int = option(default=42, help="Seed of weights, dropout and order")
    batch_size: int = option(default=8, help="Images per batch")
    dropout: float = option(default=0.1, help="Part that dropout leaves out")
    accumulate: int = option(default=1, help="Batches per step")
    swap: int = option(default=0, help="Swap the samples at this position and the next")
    engine: str = option(default="eager", help="How steps are computed")
    threads: int = option(default=1, help="Threads")
    output: str = option(default="runs", help="Folder of the runs")
    resume: str | None = option(help="Run to continue")


class Swapped(Sampler):
    """A random order in which one sample changes places with the next one."""

    def __init__(self, seed: int, position: int) -> None:
        self._plain = RandomSampler(IMAGES, seed)
        self._position = position

    def indices(self, epoch: int) -> Tensor:
        """The order of an epoch."""
        order = self._plain.indices(epoch).clone()
        if self._position:
            at = self._position
            order[[at, at + 1]] = order[[at + 1, at]]
        return order


def images() -> Tensor:
    """``[IMAGES, PIXELS]`` float32, from the file."""
    data = bytearray(FILE.read_bytes())
    return torch.frombuffer(data, dtype=torch.float32).reshape(IMAGES, PIXELS).clone()


def make_data() -> None:
    """Write the file."""
    draw = torch.Generator().manual_seed(0)
    FILE.write_bytes(torch.randn(IMAGES, PIXELS, generator=draw).numpy().tobytes())


class Network(nn.Module):
    """``[B, PIXELS]`` to ``[B, 1]``."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 32), nn.Linear(32, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        out: Tensor = self.last(self.dropout(nn.functional.gelu(self.first(x))))
        return out


class Loss:
    """A loss that can be sent to other processes."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scaled error of a batch."""
        if DRAWS:
            torch.rand(DRAWS)
        x, y = batch
        weight = next(model.parameters()).detach().flatten()[0]
        # The weight makes other terms in each step, or one sum could come out equal in all of them.
        # The factor makes the errors larger than the last bit of the loss.
        errors = 1000.0 * (weight * LONG).sum()
        return SCALE * nn.functional.mse_loss(model(x), y) + errors


class Make:
    """Makes model and optimizer, also in other processes."""

    def __init__(self, args: Args) -> None:
        self._dropout, self._lr = args.dropout, args.lr

    def model(self, device: torch.device) -> nn.Module:
        """The network."""
        return Network(self._dropout).to(device)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(parameters, lr=self._lr)


def main(args: Args) -> None:
    """Train."""
    torch.set_num_threads(args.threads)
    x, make = images(), Make(args)
    trainer = (
        Trainer.builder(make.model, make.optimizer, Loss())
        .dataset(TensorDataSet(x, x.sum(1, keepdim=True)))
        .batch_size(args.batch_size)
        .num_epochs(args.epochs)
        .seed(args.seed)
        .accumulate(args.accumulate)
        .engine(args.engine)
        .loader_options(sampler=Swapped(args.seed, args.swap))
        .device("cpu")
    )
    with RunDirectory.create(args.output, config=args.resolved(), resume=args.resume) as run:
        trainer.run_dir(run).run()


if __name__ == "__main__":
    if sys.argv[1:] == ["--make-data"]:
        make_data()
    else:
        sys.exit(entry(main, Args.parse_or_schema()))
