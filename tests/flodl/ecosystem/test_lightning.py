"""A graph as a member of a LightningModule: fitted, validated and checkpointed by Lightning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from flodl import Graph
from tests.flodl.ecosystem.networks import WIDTH, assert_same, mixture, recurrent

# Lightning remarks on loaders without workers and uses a class that torch deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers"),
]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(24, 8, generator=generator)
    context = torch.randn(24, WIDTH, generator=generator)
    return TensorDataset(x, context, x[:, :3] * context[:, :3])


def lightning_module(graph: Graph, *, contexts: bool):
    import pytorch_lightning as lightning

    class Member(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.graph = graph
            self.losses: list[float] = []

        def predict(self, batch: list[Tensor]) -> Tensor:
            x, context, _ = batch
            return self.graph(x, context) if contexts else self.graph(x)

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            return mse_loss(self.predict(batch), batch[2])

        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            with self.graph.preserve_state():
                self.graph.reset_state()
                self.losses.append(mse_loss(self.predict(batch), batch[2]).item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.graph.parameters(), lr=0.01)

    return Member()


def by_hand(graph: Graph, *, contexts: bool) -> Graph:
    """Two epochs of the same training in plain torch."""
    optimizer = torch.optim.Adam(graph.parameters(), lr=0.01)
    for _ in range(2):
        for x, context, target in DataLoader(data(), batch_size=6):
            optimizer.zero_grad()
            mse_loss(graph(x, context) if contexts else graph(x), target).backward()
            optimizer.step()
    return graph


def trainer(folder: Path):
    import pytorch_lightning as lightning

    return lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "contexts"), [(mixture, True), (recurrent, False)], ids=["mixture", "recurrent"]
)
def test_a_fit_is_the_training_one_would_write_by_hand(make, contexts, tmp_path):
    torch.manual_seed(0)
    graph = make()
    plain = make()
    plain.load_state_dict(graph.state_dict())
    member = lightning_module(graph, contexts=contexts)
    fit = trainer(tmp_path)
    fit.fit(member, DataLoader(data(), batch_size=6), DataLoader(data(), batch_size=12))
    by_hand(plain, contexts=contexts)
    assert_same(graph.state_dict(), plain.state_dict())
    assert fit.global_step == 8
    assert member.losses[-1] < member.losses[0]

    fit.save_checkpoint(tmp_path / "member.ckpt", weights_only=True)
    stored = torch.load(tmp_path / "member.ckpt", weights_only=True)["state_dict"]
    other = nn.ModuleDict({"graph": make()})
    other.load_state_dict(stored)
    assert_same(other["graph"].state_dict(), graph.state_dict())
