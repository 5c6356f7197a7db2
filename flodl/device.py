"""The device of a training, and deterministic algorithms."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flodl import log
from flodl.processor import bfloat16_instructions, processor_name


def select_device(requested: torch.device | str | None = None) -> torch.device:
    """Choose the device of a training.

    Args:
        requested: A device, or None (or ``"auto"``) for the first CUDA device that runs a kernel,
            else the CPU.

    Raises:
        ValueError: The device does not exist here.
    """
    if requested is None or requested == "auto":
        index = next(_working_gpus(), None)
        return torch.device("cpu") if index is None else torch.device("cuda", index)
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ValueError(
            f"device={requested!r} is not a device: use 'cpu', 'cuda', 'cuda:1' or 'auto'"
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r}: this torch ({torch.__version__}) sees "
            f"{torch.cuda.device_count()} CUDA devices; use 'cpu' or install a CUDA build of torch"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(
            f"device={str(device)!r}: this machine or this torch ({torch.__version__}) has no MPS, "
            "Apple's interface to its GPUs; use 'cpu'"
        )
    return device


def hardware_name(device: torch.device) -> str:
    """Return the name of the GPU or of the processor: ``NVIDIA A100``, ``AMD EPYC 7763``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name() if device.type == "cpu" else device.type


def usable_gpus() -> list[int]:
    """Return the numbers of the GPUs that run a test kernel; warn about the others."""
    return list(_working_gpus())


def why_unusable(gpu: torch.device) -> str | None:
    """Return why a GPU does not work; None if it works."""
    try:
        # A GPU may be visible although this build has no kernels for its architecture.
        (torch.ones(1, device=gpu) + 1).item()
    except RuntimeError as error:
        return str(error)
    return None


def _working_gpus() -> Iterator[int]:
    for index in range(torch.cuda.device_count()):
        problem = why_unusable(torch.device("cuda", index))
        if problem is None:
            yield index
        else:
            warnings.warn(f"cuda:{index} is skipped: {problem}", UserWarning, stacklevel=3)


@contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Let torch use only algorithms that give the same bits every time, inside the context.

    An operation without such an algorithm raises ``RuntimeError``. For CUDA, it fixes the workspace
    of cuBLAS unless the environment sets it. That must happen before cuBLAS is first used.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


def warn_of_slow_bfloat16(dtype: torch.dtype | None, device: torch.device) -> None:
    """Warn if a device has to emulate bfloat16.

    A warning and not an error: the same program and manifest run on other machines, too.
    """
    if dtype != torch.bfloat16:
        return
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            log.warning(
                f"{torch.cuda.get_device_name(device)} has no units for bfloat16 and emulates it: "
                "steps are slower than in float32; use float16 or float32"
            )
    elif device.type == "cpu" and bfloat16_instructions() == "":
        log.warning(
            "this processor has no instructions for bfloat16 (avx512_bf16, amx_bf16 or ARM's "
            "bf16) and emulates it: expect steps that are slower than in float32, up to many "
            "times; use float32 on this machine"
        )
