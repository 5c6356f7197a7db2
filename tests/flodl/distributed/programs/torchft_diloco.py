"""A replica of torchft's DiLoCo: ``REPLICA LIGHTHOUSE FILE`` writes the weights at the end."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore

STEPS, EVERY = 24, 4
LOCAL = "127.0.0.1"


def network() -> nn.Module:
    """The same on all replicas."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer of the paper."""
    return torch.optim.AdamW(model.parameters(), lr=4e-3)


def batches(replica: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of a replica."""
    drawn = torch.Generator().manual_seed(replica)
    return [
        (torch.randn(8, 6, generator=drawn), torch.randn(8, 1, generator=drawn))
        for _ in range(STEPS)
    ]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    """A local step."""
    optimizer.zero_grad()
    (model(batch[0]) - batch[1]).square().mean().backward()
    optimizer.step()


def main(replica: int, lighthouse: str, path: str) -> None:
    """Train with the other replica."""
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    patience = timedelta(seconds=120)
    store = TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False)
    model = network()
    inner = adamw(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience), min_replica_size=2, use_async_quorum=False,
        load_state_dict=lambda _: None, state_dict=dict, replica_id=f"replica{replica}",
        store_addr=LOCAL, store_port=store.port, hostname=LOCAL, rank=0, world_size=1,
        lighthouse_addr=lighthouse, timeout=patience, quorum_timeout=patience, init_sync=False,
    )  # fmt: skip
    with DiLoCo(manager, [model], inner, outer, sync_every=EVERY):
        for batch in batches(replica):
            step(model, inner, batch)
    torch.save([parameter.detach() for parameter in model.parameters()], path)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.readline()  # the other replica may still need this one
    manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
