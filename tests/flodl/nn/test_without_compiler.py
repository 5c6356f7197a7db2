"""The optimizers of flodl do what torch's do, without loading torch's compiler."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from flodl.nn.optim import SGD, RateControl
from flodl.nn.without_compiler import without_compiler

PROGRAM = """
import copy, io, json, pickle, sys
import torch
from torch import nn

# As if the first object of one class was made before.
torch.optim.SGD.__new__(torch.optim.SGD)._patch_step_function()

import flodl

NAMES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "RAdam", "NAdam")

def weights(kind):
    torch.manual_seed(1)
    model, calls = nn.Linear(4, 4), []
    optimizer = kind(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    def loss():
        optimizer.zero_grad()
        value = model(torch.ones(2, 4)).square().sum()
        value.backward()
        return value
    for number in range(6):
        optimizer.step(loss)
        schedule.step()
        if number == 3:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.load_state_dict(torch.load(file))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        twin.step()
        twin.zero_grad(set_to_none=False)
    assert torch.is_grad_enabled()
    return model.weight.tolist(), calls

ours = {name: weights(getattr(flodl, name)) for name in NAMES}
loaded = "torch._dynamo" in sys.modules
theirs = {name: weights(getattr(torch.optim, name)) for name in NAMES}
print(json.dumps([loaded, ours, theirs, "torch._dynamo" in sys.modules]))
"""


def check(program: str) -> None:
    """Run it: equal weights and calls, and only torch's own optimizers load the compiler."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, ours, theirs, loaded_by_torch = json.loads(done.stdout)
    assert not loaded
    assert loaded_by_torch
    for name, (weights, calls) in ours.items():
        assert [weights, calls] == theirs[name], name
        assert calls == ["before", "after"] * 6


@pytest.mark.slow
def test_seven_optimizers_do_the_same_without_loading_the_compiler():
    check(PROGRAM)


@pytest.mark.slow
def test_a_compiled_training_captures_the_same_graphs():
    def found(kind):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        weight = nn.Parameter(torch.ones(4))
        optimizer = kind([weight], lr=0.1)

        @torch.compile(backend="eager")
        def step():
            optimizer.step()
            optimizer.zero_grad()
            return optimizer.state_dict()["param_groups"][0]["lr"]

        for _ in range(3):
            weight.grad = torch.ones(4)
            step()
        return weight.tolist(), dict(torch._dynamo.utils.counters["stats"])

    ours, theirs = found(SGD), found(torch.optim.SGD)
    torch._dynamo.reset()
    assert ours == theirs


def test_what_a_version_of_torch_or_a_program_does_in_another_way_stays():
    class Other(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, closure=None):
            return super().step(closure)

        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)

    step, zero_grad = Other.step, Other.zero_grad
    kind = without_compiler(type("Ours", (RateControl, Other), {}))
    assert (kind.step, kind.zero_grad) == (step, zero_grad)
    assert kind.state_dict is not Other.state_dict
