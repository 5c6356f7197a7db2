"""A training that compiles nothing does not load the compiler, and one that does is as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEFORE = """
import sys
import torch
from torch import nn
from torch.optim.optimizer import _use_grad_for_differentiable
from flodl.train.compiler_import import postpone_compiler

def loaded():
    return "torch._dynamo" in sys.modules

def guards():
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    return [getattr(torch.optim.Optimizer, name).__wrapped__ for name in names]

def lean():
    return [hasattr(one, "__dynamo_disable") for one in guards()]

def weights(kind):
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optimizer = kind(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    return model.weight.detach()

class Own(torch.optim.SGD):
    # Of the program, with torch's wrapper around its step.
    step = _use_grad_for_differentiable(torch.optim.SGD.step.__wrapped__)

KINDS = [
    one
    for one in vars(torch.optim).values()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)
    and one.__name__ not in ("Optimizer", "LBFGS", "SparseAdam", "Muon", "Adafactor")
]
"""
TRAINING = """
import sys
import torch
from torch import nn
from flodl import Trainer

def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

x = torch.randn(64, 4)
for optimizer in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.AdamW):
    (
        Trainer.builder(lambda _: nn.Linear(4, 2), lambda p: optimizer(p), loss)
        .dataset((x, x[:, :2])).batch_size(8).num_epochs(2).progress(False).run()
    )
sys.exit(10 if "torch._dynamo" in sys.modules else 0)
"""


OWN_OPTIMIZER = """
import sys
import torch
from torch import nn
from flodl import Trainer

model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
schedule.step()
torch.save(optimizer.state_dict(), FILE)
optimizer.load_state_dict(torch.load(FILE))
setup = Trainer.setup(model, None, optimizer)
nn.functional.mse_loss(setup.model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
setup.step()
sys.exit(10 if "torch._dynamo" in sys.modules else 0)
"""


def python(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_trainings_that_compile_nothing_do_not_load_the_compiler() -> None:
    python(TRAINING)


def test_a_loop_and_an_optimizer_of_the_program_do_not_load_it_either(tmp_path: Path) -> None:
    python(OWN_OPTIMIZER.replace("FILE", repr(str(tmp_path / "optimizer.pt"))))


@pytest.mark.slow
def test_every_optimizer_does_the_same_and_all_is_put_back_before_the_compiler_is_there() -> None:
    python(
        BEFORE
        + """
postpone_compiler()
postpone_compiler()
assert lean() == [True] * 4
class Late(Own):
    step = _use_grad_for_differentiable(Own.step.__wrapped__)
postpone_compiler()
KINDS += [Own, Late]
steps = {kind: weights(kind) for kind in KINDS}
assert len(KINDS) >= 11, KINDS
assert not loaded()
assert torch.is_grad_enabled()

import torch._dynamo
assert lean() == [False] * 4
assert not any("compiler_import" in type(one).__module__ for one in sys.meta_path)
for kind, found in steps.items():
    assert torch.equal(found, weights(kind)), kind
assert lean() == [True] * 4  # by torch itself: the real functions this time
assert all(getattr(one, "__dynamo_disable") is not one for one in guards())
"""
    )


@pytest.mark.slow
def test_a_step_that_is_compiled_afterwards_is_compiled_as_ever() -> None:
    program = """
import torch._dynamo
def compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    p = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([p], lr=0.1)
    @torch.compile(backend="eager")
    def step():
        optimizer.step()
    for _ in range(3):
        p.grad = torch.ones(4)
        step()
    counters = torch._dynamo.utils.counters
    return p.detach(), dict(counters["stats"]), len(counters["graph_break"])
print(compiled())
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", BEFORE + first + program],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first in ("", "postpone_compiler()\nweights(torch.optim.SGD)\nassert not loaded()\n")
    ]
    assert outputs[0]
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_where_the_compiler_is_there_or_torch_is_another_one_nothing_is_touched() -> None:
    python(BEFORE + "import torch._dynamo\npostpone_compiler()\nassert lean() == [False] * 4")
    python(
        BEFORE
        + """
for version in ("2.7.1", "2.15.0+cpu", "3.0", "unknown"):
    torch.__version__ = version
    postpone_compiler()
    assert lean() == [False] * 4, version
"""
    )
    python(
        BEFORE
        + """
for kind in [Own, *KINDS]:
    kind.step = lambda self: None
postpone_compiler()
assert lean() == [False] * 4
assert not any("compiler_import" in type(one).__module__ for one in sys.meta_path)
"""
    )
