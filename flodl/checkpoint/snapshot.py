"""Copies of tensors in host memory, taken fast and again and again."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flodl.checkpoint.store import memory_of


@torch.no_grad()
def snapshot(
    tensors: Mapping[str, Tensor], reuse: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Copy tensors to the CPU; those that share memory share their copy, too.

    Args:
        tensors: By name, on any device.
        reuse: A former snapshot that nobody needs any more. Where its tensors fit they are
            overwritten: fresh memory costs several times as much as the copy itself.

    Returns:
        Dense tensors under the same names. Copies from a CUDA device are page-locked, and
        complete when this returns.
    """
    copies: dict[str, Tensor] = {}
    by_memory: dict[object, Tensor] = {}
    taken: set[int] = set()
    devices: set[torch.device] = set()
    for name, tensor in tensors.items():
        memory = memory_of(tensor)
        copy = by_memory.get(memory)
        if copy is None:
            former = None if reuse is None else reuse.get(name)
            # Tensors that were shared before and are no longer need a buffer each.
            copy = _buffer(tensor, None if id(former) in taken else former)
            taken.add(id(copy))
            copy.copy_(tensor, non_blocking=True)
            by_memory[memory] = copy
            if tensor.is_cuda:
                devices.add(tensor.device)
        copies[name] = copy
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _buffer(tensor: Tensor, former: Tensor | None) -> Tensor:
    if (
        former is not None
        and former.shape == tensor.shape
        and former.dtype == tensor.dtype
        and former.is_pinned() == tensor.is_cuda
    ):
        return former
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
