"""Importing flodl and training with it changes nothing of torch or of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from tests.flodl.torch_walk import Walk

import torch
with torch.profiler.record_function("step"):  # torch notes that it has looked for a profiler
    pass

before = Walk()
import flodl
from flodl import Trainer, DataLoader
imported = sorted(before.changes())

from torch import nn

def step(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

x = torch.randn(8, 4)
make = lambda _: nn.Linear(4, 2)
Trainer.builder(make, flodl.AdamW, step).dataset((x, x[:, :2])).batch_size(8).num_epochs(1).run()
print(json.dumps([len(before.found), imported, sorted(before.changes())]))
"""


def test_an_import_and_a_training_change_nothing_of_torch_or_of_the_process():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    walked, imported, trained = json.loads(done.stdout)
    assert walked > 50_000
    assert imported == []
    assert trained == []
