"""What the engine needs beside the training itself: a bounded amount, whatever the model's size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from torch import nn
from flodl.data import Batch
from flodl.train.step import AutoEngine, AutoPolicy, EagerEngine, StepSettings
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning
from flodl.train.step.step_values import loss_log

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2000, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.Linear(1500, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
settings = StepSettings(train_fn=lambda m, b: m(b["x"]).square().mean())
losses = loss_log(torch.device("cpu"), 0)
batch = Batch((torch.randn(4, 2000),), ("x",))
plain = EagerEngine(model, optimizer, settings)
for _ in range(4):
    plain.step(batch, losses)
# What oneDNN and the fused step take themselves is no cost of the trials.
tuned = TunedEngine(model, optimizer, settings)
for routed in (True, False):
    tuned.use(Tuning(fused=True, onednn=routed))
    for _ in range(4):
        tuned.step(batch, losses)
tuned.close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
policy = AutoPolicy(
    least_steps=1, least_seconds=0.0, cost=1e9, gain=-1e9, block=1, short_step=1e9
)
engine = AutoEngine(model, optimizer, settings, total_steps=10**6, policy=policy)
while not engine.decided or engine.report()["source"] == "":
    engine.step(batch, losses)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert "fused optimizer" in engine.report()["tuning"], engine.report()
print((after - before) / 1024)
"""


# Ten seconds of large products, which share their memory with nothing.
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts kilobytes of Linux")
def test_the_engine_takes_a_small_part_of_what_the_training_takes():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    # Parameters, gradients and the state of Adam are 84 MB; copying them all would show.
    assert float(done.stdout.split()[-1]) < 40
