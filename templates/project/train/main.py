"""Train a classifier of hand-written digits: `fdl train`. Change this file as you like."""

import sys
from functools import partial

from fdl import FdlArgs, option
from flodl import AdamW, Batch, DataLoader, RunDirectory, Trainer, digits, entry
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.types import Device


class Args(FdlArgs):
    """Train a classifier of hand-written digits."""

    epochs: int = option(default=10, help="Passes over the training images")
    batch_size: int = option(default=32, help="Images per batch")
    lr: float = option(default=3e-3, help="Learning rate of AdamW")
    seed: int = option(default=42, help="Seed of the initial weights and the order of the data")
    output: str = option(default="runs/train", help="Folder for the run directories")
    resume: str | None = option(default="last", help="Run to continue: its folder, or `last`")
    live: int | None = option(default=0, help="Serve the live page, on this port or a free one")
    engine: str = option(default="eager", help="Engine: eager, auto, compiled or cuda_graph")


class Digits(nn.Module):
    """Images [B, 1, 8, 8] in, logits [B, 10] out. Put your own model here."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        return self.head(features + self.block(features))


def build_model(device: Device = "cpu") -> nn.Module:
    """Return a new model; the Trainer calls this once, after the seed is set."""
    return Digits().to(device)


def train_step(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of one batch; the Trainer does the rest of the step."""
    return cross_entropy(model(batch["image"]), batch["label"])


def evaluate(model: nn.Module) -> dict[str, float]:
    """Return loss and accuracy on the held-out digits, which training never sees."""
    device = next(model.parameters()).device
    loss, correct, count = 0.0, 0, 0
    for batch in DataLoader(digits("test"), batch_size=256, device=device, shuffle=False):
        logits, labels = model(batch["image"]), batch["label"]
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    return {"val_loss": loss / count, "accuracy": correct / count}


def main(args: Args) -> None:
    """Train, and write a run directory with a report and the weights."""
    trainer = (
        Trainer.builder(build_model, partial(AdamW, lr=args.lr), train_step)
        # Put your own data set here.
        .dataset(digits("train"))
        .batch_size(args.batch_size)
        .num_epochs(args.epochs)
        .seed(args.seed)
        .engine(args.engine)
        .eval_fn(evaluate)
        .keep_best("accuracy", higher_is_better=True)
    )
    if args.live is not None:
        trainer.live(args.live)
    with RunDirectory.create(args.output, config=args.resolved(), resume=args.resume) as run:
        trained = trainer.run_dir(run).run()
    if run.writes:  # with several GPUs, one process reports
        last = trained.poll_metrics()[-1]
        print(f"accuracy {last.scalars['accuracy']:.1%} on held-out digits")
        print(f"report   {run.path / 'report.html'}")


if __name__ == "__main__":
    sys.exit(entry(main, Args.parse_or_schema()))
