"""The mode ``sync``: a plain loop over the same batches on every rank, with ``Trainer.setup``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from flodl.data import DataLoader
from flodl.ddp_bench.stage import Stage, variables
from flodl.ranks.settings import SIMULATION_VARIABLE, DdpConfig
from flodl.train.callbacks import model_metrics
from flodl.trainer import Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from flodl.train.plain_loop.setup import TrainingSetup


def train_setup(stage: Stage) -> None:
    """Train; all ranks compute each batch of the common order together."""
    cell, declared = stage.cell, stage.cell.ddp.simulate_ms
    pace = {} if declared is None else {SIMULATION_VARIABLE: ",".join(f"{ms:g}" for ms in declared)}
    with variables(**pace):
        setup = Trainer.setup(
            stage.build(),
            None,
            stage.optimizer,
            config=DdpConfig(
                speed_hint=cell.ddp.speed_hint,
                overhead_target=cell.ddp.overhead_target,
                max_anchor=cell.ddp.max_anchor,
                max_grad_norm=cell.max_grad_norm,
                average_optimizer_state=cell.ddp.average_optimizer_state,
                timeline=stage.timeline,
            ),
        )
        setup.set_scheduler(stage.schedule())
        device = stage.group.device
        loader = DataLoader(stage.data.train, cell.batch_size, device=device, seed=cell.seed)
        for epoch in range(cell.epochs):
            _epoch(stage, setup, loader, epoch)


def _epoch(stage: Stage, setup: TrainingSetup, loader: DataLoader, epoch: int) -> None:
    stage.timeline.event("epoch_start", epoch=epoch)
    began = time.perf_counter()
    total = _steps(stage, setup, loader, epoch)
    loss = float(total) / stage.batches  # waits for the device
    train_ms = (time.perf_counter() - began) * 1000
    stage.timeline.event("epoch_end", epoch=epoch, loss=loss)
    shares = {f"share {rank}": part for rank, part in enumerate(setup.chunk_ratios)}
    stage.end_epoch(
        epoch,
        setup.model,
        loss=loss,
        train_ms=train_ms,
        k=1,
        counts=(1,) * stage.group.world_size,
        batches=(stage.batches,) * stage.group.world_size,
        scalars=model_metrics(setup.model) | shares,
    )


def _steps(stage: Stage, setup: TrainingSetup, loader: DataLoader, epoch: int) -> Tensor:
    """Train the batches of an epoch; return the sum of their losses."""
    # All ranks need the same images, so they draw the same crops.
    crops = torch.Generator().manual_seed((stage.cell.seed << 16) + epoch)
    total = torch.zeros((), device=stage.group.device)
    for batch in loader.epoch(epoch):
        loss = stage.loss(setup.model, batch, crops)
        loss.backward()  # type: ignore[no-untyped-call]
        setup.step()
        total += loss.detach()
    return total
