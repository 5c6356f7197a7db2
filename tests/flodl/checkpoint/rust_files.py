"""Checkpoints as the Rust flodl writes them, made byte by byte."""

from __future__ import annotations

import struct

import torch

CODES = {
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float32: 3,
    torch.float64: 4,
    torch.int32: 5,
    torch.int64: 6,
}


def rust_checkpoint(tensors, version=1, digest=bytes(32)):
    parts = [struct.pack("<4sI32sI", b"FDLC", version, digest, len(tensors))]
    parts += [rust_tensor(name, tensor) for name, tensor in tensors.items()]
    return b"".join(parts)


def rust_tensor(name, tensor):
    values = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return rust_entry(name.encode(), tensor.shape, CODES[tensor.dtype], values)


def rust_entry(name, shape, code, values, size=None):
    head = struct.pack("<I", len(name)) + name + struct.pack("<I", len(shape))
    sizes = struct.pack(f"<{len(shape)}q", *shape)
    return head + sizes + struct.pack("<BQ", code, len(values) if size is None else size) + values
