"""What a short training and a prediction do not import: it would lengthen every start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flodl.hf.predict.reference import write

TRAINING = """
import torch
before = set(sys.modules)
from torch import nn
from flodl import AdamW, FlowBuilder, RunDirectory, Trainer, digits, entry

def step(model, batch):
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])

def main(folder):
    trainer = Trainer.builder(
        lambda device: FlowBuilder.from_(nn.Flatten()).through(nn.Linear(64, 10)).build(),
        AdamW, step,
    )
    trainer.dataset(digits("test")).batch_size(64).num_epochs(2).live(0)
    trainer.eval_fn(lambda model: {"norm": float(next(model.parameters()).norm())})
    with RunDirectory.create(folder, config={"lr": 0.001}) as run:
        trainer.run_dir(run).run()

code = entry(main, sys.argv[1])
tell(before)
sys.exit(code)
"""

OPENING = """
import torch
before = set(sys.modules)
import flodl.hf
tell(before)
"""

PREDICTION = """
import torch
before = set(sys.modules)
from flodl.hf import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
assert model.predict(["Ada met Charles."])
tell(before)
"""

TELL = """
import json, sys

def tell(before):
    print(json.dumps(sorted(set(sys.modules) - before)))
"""

UNUSED = (
    # Compilers and what they compute with.
    "torch._dynamo", "torch._inductor", "torch.onnx", "torch.export", "sympy", "mpmath", "triton",
    # Many ranks.
    "torch.distributed.elastic", "torch.distributed.rpc", "multiprocessing.pool", "torch.fx",
    # Records for other tools.
    "tensorboard", "torch.utils.tensorboard", "wandb", "mlflow", "matplotlib", "PIL", "pandas",
    # The network.
    "filelock", "urllib.request", "http.client", "ssl", "httpx2", "huggingface_hub", "requests",
    # Other libraries for models, and those of fdl.
    "transformers", "scipy", "sklearn", "fdl", "typer", "rich", "yaml", "pydantic",
    "psutil", "numpy.random",
)  # fmt: skip
USED_BY_CHECKPOINTS = {"numpy.random"}
"""They hold the states of all global generators."""


def loaded_by(program: str, argument: Path | str = "") -> set[str]:
    """The modules that a program imports besides those of torch itself."""
    done = subprocess.run(
        [sys.executable, "-c", TELL + program, str(argument)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def unused(found: set[str]) -> set[str]:
    """Those of the list, and one module of each package of the list; both halves use fdl.base."""
    base = {
        one for one in found if one in ("fdl", "fdl.version") or f"{one}.".startswith("fdl.base.")
    }
    found = found - base
    return {one for one in UNUSED if any(f"{name}.".startswith(f"{one}.") for name in found)}


def test_a_short_training(tmp_path: Path) -> None:
    found = loaded_by(TRAINING, tmp_path / "runs")
    assert "flodl.train.loop" in found
    assert unused(found) == USED_BY_CHECKPOINTS


def test_the_import_of_the_models() -> None:
    found = loaded_by(OPENING)
    assert "flodl.hf" in found
    assert unused(found) == set()


@pytest.mark.slow
def test_a_model_of_the_hub_and_one_prediction(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write(tmp_path, "bert", "ForSequenceClassification")
    found = loaded_by(PREDICTION, tmp_path)
    assert "flodl.hf.predict" in found
    assert unused(found) == set()
