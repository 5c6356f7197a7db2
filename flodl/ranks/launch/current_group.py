"""The ranks to which this process belongs, joined once."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

import torch

from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from flodl.ranks.group import Group

_joined: Group | None = None


def this_group(device: torch.device | str | None = None) -> Group:
    """Return the group of this process; it joins once, and leaves when the program ends."""
    global _joined
    if _joined is None:
        from flodl.ranks.launch.join import join

        _joined = join(os.environ, device=device)
        atexit.register(_leave)
    return _joined


def _leave() -> None:
    global _joined
    group, _joined = _joined, None
    if group is not None:
        group.close()


def is_first_rank() -> bool:
    """Whether this process is rank 0 or alone; only it reads and writes the files of a run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    launched = detect(os.environ)
    return launched is None or launched.rank == 0
