"""Tracing in one thread while another thread trains."""

from __future__ import annotations

import functools
import threading
from typing import Any, cast

import torch.fx


@functools.cache
def trace_own_thread_only() -> None:
    """Let torch.fx follow only the calls of the thread that traces.

    While it traces, torch.fx replaces ``torch.nn.Module.__call__`` for all threads. If another
    thread calls a module meanwhile, torch.fx takes it for a part of the traced model and refuses
    it. This function prevents that for the rest of the process; tracing itself does not change.
    """
    tracer = cast(Any, torch.fx.Tracer)
    trace, call_module = tracer.trace, tracer.call_module

    @functools.wraps(trace)
    def trace_here(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.flodl_thread = threading.get_ident()
        return trace(self, *args, **kwargs)

    @functools.wraps(call_module)
    def call_module_here(self: Any, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        here = threading.get_ident()
        if getattr(self, "flodl_thread", here) != here:
            return forward(*args, **kwargs)
        return call_module(self, m, forward, args, kwargs)

    tracer.trace, tracer.call_module = trace_here, call_module_here
