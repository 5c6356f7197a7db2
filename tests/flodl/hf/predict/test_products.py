"""The library that multiplies: a clock does not choose it, so the same texts get the same bits."""

import itertools
import threading
import time

import pytest
import torch
from torch import nn

from flodl.hf.predict.batching import running
from flodl.train.step.tuning import routed


def clock(*seconds: float):
    """A clock by which pieces of work take these seconds in turn."""
    steps = itertools.cycle([step for taken in seconds for step in (0.0, taken)])
    ticks = itertools.accumulate(steps)
    return lambda: next(ticks)


@pytest.mark.parametrize("seconds", [(1.0, 0.1), (0.1, 1.0)], ids=["faster", "slower"])
def test_timings_do_not_decide_on_the_bits_of_large_predictions(monkeypatch, seconds):
    layer, tokens = nn.Linear(768, 768), torch.randn(384, 768)
    plain = layer(tokens)
    monkeypatch.setattr(time, "perf_counter", clock(*seconds))
    with running(layer):
        found = layer(tokens)
    assert torch.equal(found, plain)


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch has no setting for it"
)
def test_the_last_of_several_threads_puts_the_setting_back():
    def setting() -> str:
        return torch._C._get_fp32_precision_getter("mkldnn", "matmul")

    before, entered, leave = setting(), threading.Event(), threading.Event()

    def other():
        with routed():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with routed():
        thread.start()
        assert entered.wait(30)
    assert setting() == "bf16"
    leave.set()
    thread.join(30)
    assert setting() == before
