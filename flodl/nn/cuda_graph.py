"""CUDA graphs: record the kernels of a function once, launch them all at once ever after."""

from __future__ import annotations

import gc
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from flodl.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    PoolHandle: TypeAlias = Any  # torch's own handle has no public type


class CaptureMode(StrEnum):
    """Which CUDA calls are refused while a capture runs, as ``cudaStreamCaptureMode`` says."""

    GLOBAL = "global"
    """Unsafe calls of any thread are refused."""
    THREAD_LOCAL = "thread_local"
    """Unsafe calls of the capturing thread are refused."""
    RELAXED = "relaxed"
    """None are refused: a loader may copy batches meanwhile."""


@final
class CudaGraph:
    """A recorded sequence of kernels over fixed tensors.

    Between :meth:`capture_begin` and :meth:`capture_end` kernels of the current stream are
    recorded instead of run; the stream must not be the default one. :func:`cuda_graph_capture`
    sees to that and to the warm-up. A replay reads and writes the very tensors that were used
    during the capture: copy new values into them first.

    Raises:
        StateError: There is no CUDA device.
    """

    def __init__(self) -> None:
        _need_cuda("CudaGraph()")
        self._graph = torch.cuda.CUDAGraph()
        self._captured = False

    def capture_begin(
        self, pool: PoolHandle | None = None, mode: CaptureMode | str = CaptureMode.RELAXED
    ) -> None:
        """Record from here on.

        Args:
            pool: Memory shared with graphs that never run at the same time as this one.
            mode: Which unsafe calls are refused meanwhile.

        Raises:
            ValueError: An unknown mode.
            StateError: The graph holds a recording already; reset it first.
        """
        mode = CaptureMode(mode)
        if self._captured:
            raise StateError("the CUDA graph holds a recording: call reset() before a new one")
        self._graph.capture_begin(pool=pool, capture_error_mode=mode.value)

    def capture_end(self) -> None:
        """Stop recording; from now on the graph can be replayed."""
        self._graph.capture_end()
        self._captured = True

    def replay(self) -> None:
        """Launch everything that was recorded, on the current stream, without waiting for it.

        Raises:
            StateError: Nothing was recorded.
        """
        if not self._captured:
            raise StateError(
                "the CUDA graph holds no recording: use cuda_graph_capture, or capture_begin "
                "and capture_end, before replay()"
            )
        self._graph.replay()

    def reset(self) -> None:
        """Forget the recording and let go of its memory."""
        self._graph.reset()
        self._captured = False

    @property
    def pool(self) -> PoolHandle:
        """Handle of the memory this graph uses, for a graph that may share it."""
        return self._graph.pool()


def cuda_graph_capture(
    warmup: int,
    pool: PoolHandle | None,
    fn: Callable[[], object],
    *,
    mode: CaptureMode | str = CaptureMode.RELAXED,
) -> CudaGraph:
    """Run a function a few times, then record it.

    The warm-up lets libraries choose algorithms, and autograd and the optimizer make their
    buffers, none of which may happen during a capture. It runs on a stream of its own, as the
    capture does, and it counts: a training step that is warmed up three times has been trained
    three times. The capture itself executes nothing.

    Args:
        warmup: Calls before the capture; 3 are enough for a training step.
        pool: Memory shared with another graph, see :func:`cuda_graph_pool_handle`; None for its
            own.
        fn: Works on fixed tensors; must not wait for the device or read a value from it.
        mode: Which unsafe calls are refused during the capture.

    Raises:
        ValueError: ``warmup`` is negative, or the mode is unknown.
        StateError: There is no CUDA device.
    """
    if warmup < 0:
        raise ValueError(f"warmup={warmup}: it counts calls, use 0 or more")
    mode = CaptureMode(mode)
    _need_cuda("cuda_graph_capture()")
    graph = CudaGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    # A tensor collected in the middle of a capture would free memory there, which is not allowed.
    gc.collect()
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        _record(graph, pool, mode, fn)
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def cuda_graph_pool_handle() -> PoolHandle:
    """Return a new memory pool for graphs that take turns.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_graph_pool_handle()")
    return torch.cuda.graph_pool_handle()


def _record(
    graph: CudaGraph, pool: PoolHandle | None, mode: CaptureMode, fn: Callable[[], object]
) -> None:
    graph.capture_begin(pool, mode)
    try:
        fn()
    except BaseException as error:
        error.add_note(
            "while a CUDA graph recorded the function: inside it nothing may wait for the device "
            "(.item(), .cpu(), printing a tensor) and no shape may depend on values"
        )
        _abandon(graph)
        raise
    graph.capture_end()


def _abandon(graph: CudaGraph) -> None:
    """End a capture that failed, so that the stream can be used again."""
    try:
        graph.capture_end()
    except RuntimeError:
        return  # the failed call has ended the capture itself; there is nothing to let go of
    graph.reset()


def _need_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        raise StateError(
            f"{name} needs a CUDA device and this process sees none; on the CPU call the "
            "function itself at every step"
        )
