"""A program in Lightning moves over, row by row of the guide, and trains to the same bits."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from textwrap import indent

import pytest
import torch
from safetensors.torch import load_file

from tests.journeys.conftest import Figure
from tests.journeys.person import Person
from tests.test_guides import BLOCK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs/porting/lightning.md").read_text(encoding="utf-8")

# What stays the same in both programs.
PARTS = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


def throws(samples, seed):
    \"\"\"Angle and speed of a throw, and whether it flies far enough.\"\"\"
    generator = torch.Generator().manual_seed(seed)
    angle, speed = torch.rand(2, samples, generator=generator)
    far = speed**2 * torch.sin(angle * torch.pi) > 0.2
    return TensorDataset(torch.stack([angle, speed], 1), far.long())


def training_throws():
    return DataLoader(throws(512, seed=1), batch_size=8)


def validation_throws():
    return DataLoader(throws(256, seed=2), batch_size=256)


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
"""

MODULE = """\
class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_network()

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        self.log("hits", (logits.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
        return cross_entropy(logits, y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [StepLR(optimizer, 2, 0.5)]
"""

BEFORE = f"""\
import pytorch_lightning as pl
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

{PARTS}

{MODULE}

class Throws(pl.LightningDataModule):
    def train_dataloader(self):
        return training_throws()

    def val_dataloader(self):
        return validation_throws()


if __name__ == "__main__":
    best = ModelCheckpoint(monitor="accuracy", mode="max")
    trainer = pl.Trainer(
        max_epochs=5,
        gradient_clip_val=1.0,
        accumulate_grad_batches=4,
        deterministic=True,
        accelerator="cpu",
        callbacks=[best, LearningRateMonitor()],
        logger=CSVLogger("logs"),
        enable_progress_bar=False,
    )
    module = Classifier()
    trainer.fit(module, Throws())
    torch.save(module.net.state_dict(), "before.pt")
    print(f"accuracy {{trainer.callback_metrics['accuracy']:.4f}}")
    print(f"best {{best.best_model_score:.4f}}")
"""

AFTER = """\
import sys

from fdl import FdlArgs, option
from flodl import RunDirectory, Trainer, entry, record_scalar

{parts}

class Args(FdlArgs):
    \"\"\"Does a throw fly far enough?\"\"\"

    lr: float = option(default=0.001, help="Learning rate of AdamW")


{step}

def evaluate(model):
    (batch,) = validation_throws()
    x, y = batch
    return {{"accuracy": (model(x).argmax(1) == y).float().mean()}}


def main(args):
    run = RunDirectory.create("runs", config=args.resolved())
    trainer = Trainer.builder(
        make_network(),
        lambda parameters: torch.optim.AdamW(parameters, lr=args.lr),
        step,
    )
    (
        trainer
{chain}
        .device("cpu")
        .run()
    )


if __name__ == "__main__":
    sys.exit(entry(main, Args.parse_or_schema()))
"""


def rows() -> dict[str, list[str]]:
    """The table of the guide: code of Lightning -> the codes in the right cell."""
    table = GUIDE.partition("| Lightning | flodl |")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        left, right = line.strip("| ").split(" | ")
        for code in re.findall(r"`([^`]+)`", left):
            found[code] = re.findall(r"`([^`]+)`", right)
    return found


def settings() -> list[str]:
    """The calls in place of the settings of the program, in the words of the table."""
    table = rows()
    for left in (
        *("max_epochs=5", "gradient_clip_val=1.0", "accumulate_grad_batches=4"),
        *("deterministic=True", 'ModelCheckpoint(monitor="accuracy", mode="max")'),
    ):
        assert left in BEFORE
    best, place = table['ModelCheckpoint(monitor="accuracy", mode="max")']
    (evaluation,) = table["validation_step"]
    builder, schedule = table["configure_optimizers"]
    assert builder == "Trainer.builder"
    (data,) = table["LightningDataModule"]
    return [
        data.replace("…", "training_throws()"),
        *table["max_epochs=5"],
        *table["gradient_clip_val=1.0"],
        *table["accumulate_grad_batches=4"],
        *table["deterministic=True"],
        evaluation.replace("…", "evaluate"),
        schedule.replace("…", "lambda optimizer: StepLR(optimizer, 2, 0.5)"),
        best,
        place.replace("…", "run"),
    ]


def record_call(text: str) -> str:
    """A training step whose ``self.log`` is replaced as the table says."""
    name = r"self\.log\((\"\w+\", .*), on_step=False, on_epoch=True\)"
    assert rows()['self.log("name", value)'] == ['record_scalar("name", value)']
    changed, count = re.subn(name, r"record_scalar(\1)", text)
    assert count == 1
    return changed


def training_function() -> str:
    """``training_step`` as the function that the table asks for."""
    (signature,) = rows()["training_step"]
    text = re.search(r"    def training_step\(.*?\n\n", MODULE, re.DOTALL)
    assert text is not None
    lines = [line.removeprefix("    ") for line in text[0].splitlines()]
    body = record_call("\n".join([f"def {signature}:", *lines[1:]]))
    return body.replace("self.net(", "model(") + "\n"


def kept_module() -> str:
    """The program with its LightningModule and the block of the guide that trains it."""
    (block,) = (
        text for language, name, text in BLOCK.findall(GUIDE) if (language, name) == ("python", "")
    )
    module = record_call(MODULE)
    block, count = re.subn(r"lr=0\.01", "lr=0.05", block)
    assert count == 1
    return f"""\
import pytorch_lightning as pl
from flodl import Trainer, record_scalar

{PARTS}

{module}

train = training_throws()
{block}
print(f"loss {{trained.poll_metrics()[-1].avg_loss:.4f}}")
"""


def curve(path: Path, column: str) -> list[float]:
    """The values of a column, without the rows that have none."""
    with path.open(newline="") as file:
        return [float(row[column]) for row in csv.DictReader(file) if row.get(column)]


def number(text: str, name: str) -> float:
    """The value of a line such as ``accuracy 0.97``."""
    found = re.search(rf"^{name} ([\d.]+)", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


@pytest.fixture
def user(own_environment: Path, people) -> Person:
    """Somebody whose program in Lightning runs."""
    person = people(own_environment)
    shutil.copy(ROOT / "constraints.txt", person.folder)
    person.run("pip install --quiet --constraint constraints.txt pytorch-lightning", limit=600)
    (person.folder / "before.py").write_text(BEFORE, encoding="utf-8")
    return person


def keep_the_module(user: Person) -> None:
    """The first step of the guide: the module stays, and flodl trains it."""
    (user.folder / "kept.py").write_text(kept_module(), encoding="utf-8")
    manifest = "description: Throws\ncommands:\n  kept:\n    run: python kept.py\n"
    (user.folder / "fdl.yml").write_text(manifest, encoding="utf-8")
    assert number(user.type("fdl kept").text, "loss") < 0.4


def move(user: Person) -> Path:
    """The module becomes functions and its settings become calls; returns the run that it makes."""
    chain = indent("\n".join(settings()), " " * 8)
    program = AFTER.format(parts=PARTS, step=training_function(), chain=chain)
    (user.folder / "train").mkdir()
    (user.folder / "train/main.py").write_text(program, encoding="utf-8")
    # In place of LightningCLI: the arguments are a class, and their values a manifest.
    assert rows()["LightningCLI"] == ["FdlArgs", "fdl.yml"]
    manifest = "description: Throws\ncommands:\n  train:\n"
    (user.folder / "fdl.yml").write_text(manifest, encoding="utf-8")
    manifest = "entry: python main.py\ntraining:\n  lr: 0.05\n"
    (user.folder / "train/fdl.yml").write_text(manifest, encoding="utf-8")
    user.type("fdl train")
    (run,) = (user.folder / "runs").iterdir()
    return run


def test_a_lightning_program_ends_with_the_same_weights(user: Person, figure: Figure) -> None:
    before = user.run("python before.py")
    assert number(before.out, "accuracy") > 0.85
    keep_the_module(user)
    run = move(user)

    theirs = torch.load(user.folder / "before.pt", weights_only=True)
    ours = {key.replace("/", "."): one for key, one in load_file(run / "model.fdl").items()}
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    # The curves are those of Lightning, too.
    log = user.folder / "logs/lightning_logs/version_0/metrics.csv"
    for name in ("accuracy", "hits"):
        expected = curve(log, name)
        assert len(expected) == 5
        assert curve(run / "metrics.csv", name) == pytest.approx(expected, abs=1e-6)
    assert set(curve(run / "metrics.csv", "lr")) == set(curve(log, "lr-AdamW"))

    # The best epoch is kept as ModelCheckpoint kept it, and the run can be found by it.
    assert (run / "best.fdl").is_file()
    best = user.type("fdl runs show best:accuracy").text
    assert re.search(rf"accuracy .*best {number(before.out, 'best'):.4f}", best)
    figure("seconds of the program in Lightning", before.seconds)
