"""Media and sinks of a training in two ranks: rank 0 alone writes, and nothing twice."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from flodl import Callback, Trainer
from flodl.ranks.group import Group
from flodl.train import RunDirectory
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Numbers, linear, plan_of, sgd
from tests.flodl.monitor.media.wandb_files import history


class Shows(Callback):
    """Shows an image every fourth step, as a program does that knows nothing of ranks."""

    def on_step_end(self, run):
        if run.monitor is not None and run.global_step % 4 == 0:
            run.monitor.image("samples/weight", torch.zeros(3, 4, 4))


def train_with_sinks(group: Group, root: Path, policy: str) -> tuple[int, bool]:
    """Train two epochs with every sink that needs no server; return the rank and its role."""
    builder = (
        Trainer.builder(linear, sgd, lambda net, batch: (net(batch[0]) - batch[1]).square().mean())
        .dataset(Numbers(128))
        .batch_size(8)
        .num_epochs(2)
        .engine("eager")
        .progress(False)
        .ddp({"policy": policy})
        .callbacks(Shows())
        .histograms(every=4)
        .tensorboard()
        .wandb("digits", mode="offline")
    )
    if group.leads:
        builder.run_dir(RunDirectory.create(root / "runs"))
    carry_out(plan_of(builder), group).join()
    return group.rank, group.leads


# Where other tests run beside it, the import of wandb outlasts the ten seconds of a sink.
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_rank_0_alone_writes_media_and_sinks_and_nothing_twice(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    assert ranks(2, train_with_sinks, tmp_path, policy) == [(0, True), (1, False)]
    [folder] = (tmp_path / "runs").iterdir()
    media = json.loads((folder / "media/index.json").read_text())["media"]
    counts = Counter((entry["kind"], entry["name"]) for entry in media)
    assert set(counts.values()) == {1}
    weights = json.loads((folder / "media/histogram/weights/weight.json").read_text())
    steps = [one["step"] for one in weights]
    assert steps[0] == 1
    assert steps == sorted(set(steps)), "each step once"
    images = list((folder / "media/image").rglob("*.png"))
    assert images
    rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    assert [row["epoch"] for row in rows] == ["1", "2"]
    # No other rank began a file of its own, here or elsewhere.
    [events] = tmp_path.rglob("events.*")
    everything = {"histograms": 0, "images": 0}
    found = reader.EventAccumulator(str(events.parent), size_guidance=everything)
    found.Reload()
    assert len(found.Scalars("epoch/loss")) == 2
    assert [one.step for one in found.Histograms("weights/weight")] == steps
    shown = sorted(f"step-{one.step}.png" for one in found.Images("samples/weight"))
    assert shown == sorted(image.name for image in images)
    logged = history(tmp_path)
    assert logged["epoch"] == [1, 2]
    assert len(logged["samples/weight"]) == len(images)
    assert len(logged["weights/weight"]) == len(steps)
