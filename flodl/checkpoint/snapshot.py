"""Fast repeated copies of tensors in host memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flodl.checkpoint.forms import Parted
from flodl.checkpoint.sharded import gathering


@torch.no_grad()
def snapshot(
    tensors: Mapping[str, Tensor], reuse: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor] | None:
    """Copy tensors to the CPU; tensors that share memory also share their copy.

    If tensors are DTensors, every process with a part must call this. The lowest rank gets the
    copy, gathered one tensor at a time.

    Args:
        tensors: By name, on any device.
        reuse: An earlier snapshot that is no longer needed. Its tensors are overwritten where they
            fit, because allocating new memory takes several times as long as the copy.

    Returns:
        Dense tensors with the same names; None if another process has them. Copies from a CUDA
        device are page-locked, and complete when this returns.

    Raises:
        ValueError: A tensor cannot be saved; for instance, it has no values.
        CheckpointError: Other processes with parts did not call this.
    """
    parted = Parted.of(tensors)
    known = Parted.of(reuse).tensors if reuse is not None else {}
    with gathering(parted.tensors, "the state of a training") as ranks:
        if not ranks.writes:
            return None
        ranks.announce(parted.tensors)
        copies: dict[str, Tensor] = {}
        taken: set[int] = set()
        devices: set[torch.device] = set()
        for name, tensor in parted.tensors.items():
            former = known.get(name)
            # Tensors that shared memory before but no longer do need one buffer each.
            copy = _buffer(tensor, None if id(former) in taken else former)
            taken.add(id(copy))
            copy.copy_(ranks.fetch(name), non_blocking=True)
            copies[name] = copy
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
    whole = parted.together(copies)
    return {name: whole[name] for name in tensors}


def _buffer(tensor: Tensor, former: Tensor | None) -> Tensor:
    if (
        former is not None
        and former.shape == tensor.shape
        and former.dtype == tensor.dtype
        and former.is_pinned() == tensor.is_cuda
    ):
        return former
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
