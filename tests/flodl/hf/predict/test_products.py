"""The library that multiplies: changed only for large work, and put back."""

import math
import threading

import pytest
import torch
from torch import nn

from flodl.hf.predict import products
from flodl.hf.predict.batching import fastest_products, running
from flodl.train.step.onednn import routed

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch has no setting for it"
)
LARGE = 10**8


def setting() -> str:
    return torch._C._get_fp32_precision_getter("mkldnn", "matmul")


@pytest.fixture
def takes(monkeypatch):
    """Let products take this part of the usual time."""
    return lambda part: monkeypatch.setattr(products, "time_through_onednn", lambda _: part)


def inside(model: nn.Module, texts: int) -> str:
    with running(model, texts):
        return setting()


def test_large_work_goes_where_products_are_faster(takes):
    before, model = setting(), nn.Linear(20, 20)
    takes(0.5)
    assert inside(model, LARGE) == "bf16" != before
    assert setting() == before


def test_nothing_changes_where_it_is_not_faster_or_not_exact(takes, monkeypatch):
    with monkeypatch.context() as inexact:
        inexact.setattr(products, "onednn_refusal", lambda: "it is not exact here")
        assert products.time_through_onednn(((3, 4, 5),)) == math.inf
    products.time_through_onednn.cache_clear()
    for part in (0.95, math.inf):
        takes(part)
        assert inside(nn.Linear(20, 20), LARGE) == setting()


def test_nothing_is_measured_for_little_work(monkeypatch):
    asked = []
    monkeypatch.setattr(products, "time_through_onednn", lambda _: asked.append(1))
    assert inside(nn.Linear(20, 20), 3) == setting()
    assert inside(nn.Linear(20, 20).double(), LARGE) == setting()
    assert asked == []


def test_the_setting_is_put_back_after_an_error(takes):
    before = setting()
    takes(0.5)
    with pytest.raises(KeyError), fastest_products(nn.Linear(20, 20), LARGE):
        raise KeyError
    assert setting() == before


def test_the_last_of_several_threads_puts_the_setting_back():
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
