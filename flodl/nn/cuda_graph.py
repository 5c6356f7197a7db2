"""CUDA graphs: record the kernels of a function once, then launch them all in one call."""

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
    """Which CUDA calls are refused during a capture, as in ``cudaStreamCaptureMode``."""

    GLOBAL = "global"
    """Refuse unsafe calls of all threads."""
    THREAD_LOCAL = "thread_local"
    """Refuse unsafe calls of the capturing thread."""
    RELAXED = "relaxed"
    """Refuse none: a loader may copy batches during the capture."""


@final
class CudaGraph:
    """A recorded sequence of kernels over fixed tensors.

    Between :meth:`capture_begin` and :meth:`capture_end`, kernels of the current stream are
    recorded instead of run. The stream must not be the default one. :func:`cuda_graph_capture`
    chooses a stream and runs the warm-up. A replay reads and writes the same tensors that the
    capture used: copy new values into them first.

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
        """Start recording.

        Args:
            pool: Memory shared with graphs that never run at the same time as this one.
            mode: Which unsafe calls are refused during the recording.

        Raises:
            ValueError: ``mode`` is unknown.
            StateError: The graph already holds a recording; reset it first.
        """
        mode = CaptureMode(mode)
        if self._captured:
            raise StateError("the CUDA graph holds a recording: call reset() before a new one")
        self._graph.capture_begin(pool=pool, capture_error_mode=mode.value)

    def capture_end(self) -> None:
        """Stop recording; the graph can be replayed from now on."""
        self._graph.capture_end()
        self._captured = True

    def replay(self) -> None:
        """Launch the recorded kernels on the current stream, without waiting for them.

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
        """Drop the recording and free its memory."""
        self._graph.reset()
        self._captured = False

    @property
    def pool(self) -> PoolHandle:
        """Handle of this graph's memory, to share it with another graph."""
        return self._graph.pool()


def cuda_graph_capture(
    warmup: int,
    pool: PoolHandle | None,
    fn: Callable[[], object],
    *,
    mode: CaptureMode | str = CaptureMode.RELAXED,
) -> CudaGraph:
    """Call a function a few times, then record it.

    In the warm-up, libraries choose algorithms, and autograd and the optimizer create their
    buffers. None of this may happen during a capture. Warm-up and capture run on a stream of their
    own. The warm-up has effects: three warm-up calls of a training step train three steps. The
    capture itself executes nothing.

    Args:
        warmup: Calls before the capture; 3 are enough for a training step.
        pool: Memory shared with another graph, see :func:`cuda_graph_pool_handle`; None allocates
            its own.
        fn: Works on fixed tensors; must not wait for the device or read a value from it.
        mode: Which unsafe calls are refused during the capture.

    Raises:
        ValueError: ``warmup`` is negative, or ``mode`` is unknown.
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
    # A tensor collected during a capture would free memory there, which CUDA does not allow.
    gc.collect()
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        _record(graph, pool, mode, fn)
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def cuda_graph_pool_handle() -> PoolHandle:
    """Return a new memory pool for graphs that never run at the same time.

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
    """End a failed capture, so that the stream can be used again."""
    try:
        graph.capture_end()
    except RuntimeError:
        # The failed call has already ended the capture; nothing is left to free. But torch's
        # generator still believes in it, and would refuse the next dropout. A copy does not.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
    else:
        graph.reset()


def _need_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        raise StateError(
            f"{name} needs a CUDA device and this process sees none; on the CPU call the "
            "function itself at every step"
        )
