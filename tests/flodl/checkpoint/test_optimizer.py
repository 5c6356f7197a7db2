"""An optimizer comes back as it was: training continues as if it had never been interrupted."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from flodl.checkpoint import (
    checkpoint_metadata,
    load_optimizer_state,
    save_checkpoint_file,
    save_optimizer_state,
)
from flodl.errors import CheckpointError
from tests.rows import each_row

INPUTS = torch.linspace(-1, 1, 24).reshape(8, 3)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(model, optimizer, steps=3):
    def loss():
        optimizer.zero_grad()
        value = (model(INPUTS) - INPUTS.sum(1, keepdim=True)).square().mean()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)


def same(first, second):
    """Deep equality of state dictionaries; a tensor equals only a tensor of its dtype."""
    if isinstance(first, torch.Tensor):
        alike = isinstance(second, torch.Tensor) and first.dtype == second.dtype
        return alike and torch.equal(first, second)
    if isinstance(first, dict):
        keys = isinstance(second, dict) and first.keys() == second.keys()
        return keys and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        items = type(first) is type(second) and len(first) == len(second)
        return items and all(map(same, first, second))
    return type(first) is type(second) and (first == second or first != first)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, betas=(0.8, 0.95)),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "Adam lr tensor": lambda p: torch.optim.Adam(p, torch.tensor(1e-2), foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": lambda p: torch.optim.Rprop(p, etas=(0.4, 1.3)),
    "ASGD": torch.optim.ASGD,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, history_size=3),
    "Adafactor": torch.optim.Adafactor,
}


@each_row("name", OPTIMIZERS)
def test_training_goes_on_exactly_where_it_was_saved(tmp_path, name):
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer)
    save_optimizer_state(optimizer, tmp_path / "opt.fdl.gz")
    resumed = copy.deepcopy(model)
    train(model, optimizer)

    second = OPTIMIZERS[name](resumed.parameters())
    load_optimizer_state(second, tmp_path / "opt.fdl.gz")
    train(resumed, second)
    assert same(dict(model.named_parameters()), dict(resumed.named_parameters()))
    assert same(optimizer.state_dict(), second.state_dict())


def test_groups_keep_their_own_options_and_a_frozen_parameter_its_absent_state(tmp_path):
    def build(model):
        first, second = model[0], model[2]
        return torch.optim.AdamW(
            [
                {"params": [first.weight, first.bias], "lr": 1e-4, "betas": (0.5, 0.6)},
                {"params": [second.weight, second.bias], "weight_decay": float("inf")},
            ],
            lr=1e-3,
        )

    model, other = network(), network()
    model[0].bias.requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer, loaded = build(model), build(other)
    train(model, optimizer)
    optimizer.param_groups[1]["note"] = [None, True, "text", float("-inf"), {"deep": (1, 2.5)}]
    loaded.param_groups[0]["lr"] = 5.0
    save_optimizer_state(optimizer, tmp_path / "opt.fdl")
    load_optimizer_state(loaded, tmp_path / "opt.fdl")
    assert same(loaded.state_dict(), optimizer.state_dict())
    assert loaded.param_groups[0]["betas"] == (0.5, 0.6)
    assert list(loaded.state_dict()["state"]) == [0]
    # The optimizer still holds the parameters of its own model.
    assert loaded.param_groups[0]["params"][0] is other[0].weight


def test_an_unused_optimizer_and_equal_bytes(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    save_optimizer_state(optimizer, tmp_path / "a.fdl")
    save_optimizer_state(optimizer, tmp_path / "b.fdl")
    assert (tmp_path / "a.fdl").read_bytes() == (tmp_path / "b.fdl").read_bytes()
    train(model, optimizer)
    load_optimizer_state(optimizer, tmp_path / "a.fdl")
    assert optimizer.state_dict()["state"] == {}
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_loaded_tensors_are_independent_of_the_file(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer)
    save_optimizer_state(optimizer, tmp_path / "opt.fdl")
    load_optimizer_state(optimizer, tmp_path / "opt.fdl")
    before = copy.deepcopy(optimizer.state_dict())
    (tmp_path / "opt.fdl").write_bytes(bytes((tmp_path / "opt.fdl").stat().st_size))
    assert same(optimizer.state_dict(), before)


@pytest.fixture
def used():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    train(model, optimizer)
    return optimizer


def refused(optimizer, path, message):
    """Loading fails with this message and leaves everything as it was."""
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(CheckpointError, match=message):
        load_optimizer_state(optimizer, path)
    assert same(optimizer.state_dict(), before)


def test_another_number_of_parameters_is_refused(tmp_path, used):
    shorter = torch.optim.Adam(network()[0].parameters())
    save_optimizer_state(shorter, tmp_path / "opt.fdl")
    message = r"opt\.fdl has the state of 2 parameters in groups of \[2\], the optimizer holds 4"
    refused(used, tmp_path / "opt.fdl", message)


def test_other_groups_and_other_shapes_are_refused(tmp_path, used):
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    save_optimizer_state(torch.optim.Adam(groups), tmp_path / "opt.fdl")
    refused(used, tmp_path / "opt.fdl", r"in groups of \[2, 2\], the optimizer holds 4 in .* \[4\]")

    swapped = torch.optim.Adam([*model[2].parameters(), *model[0].parameters()])
    save_optimizer_state(swapped, tmp_path / "opt.fdl")
    message = r"parameter 0 of group 0: file \[1, 4\], optimizer \[4, 3\]"
    refused(used, tmp_path / "opt.fdl", message)


def test_another_class_is_refused_and_a_derived_one_is_not(tmp_path, used):
    save_optimizer_state(torch.optim.SGD(network().parameters(), 0.1), tmp_path / "sgd.fdl")
    refused(used, tmp_path / "sgd.fdl", "has the state of SGD, which Adam cannot use")

    class Tuned(torch.optim.Adam):
        pass

    save_optimizer_state(used, tmp_path / "adam.fdl")
    derived = Tuned(network().parameters())
    load_optimizer_state(derived, tmp_path / "adam.fdl")
    assert same(derived.state_dict(), used.state_dict())


def test_a_model_and_a_damaged_file_are_refused(tmp_path, used):
    save_checkpoint_file(tmp_path / "model.fdl", network().named_parameters(), [])
    refused(used, tmp_path / "model.fdl", r"model\.fdl holds no optimizer state")
    refused(used, tmp_path / "nowhere.fdl", "cannot open checkpoint")
    save_optimizer_state(used, tmp_path / "opt.fdl")
    data = bytearray((tmp_path / "opt.fdl").read_bytes())
    data[-1] ^= 1
    (tmp_path / "opt.fdl").write_bytes(data)
    refused(used, tmp_path / "opt.fdl", "its checksum is")


def test_the_file_is_json_and_tensors_and_never_a_pickle(tmp_path, used):
    save_optimizer_state(used, tmp_path / "opt.fdl")
    description = json.loads(checkpoint_metadata(tmp_path / "opt.fdl")["optimizer"])
    assert description["class"] == "Adam"
    assert description["shapes"] == [[[4, 3], [4], [1, 4], [1]]]
    used.param_groups[0]["callback"] = print
    with pytest.raises(ValueError, match="groups/0/callback is a builtin_function"):
        save_optimizer_state(used, tmp_path / "other.fdl")
    used.param_groups[0]["callback"] = {print: 1}
    with pytest.raises(ValueError, match="callback has a key that is a builtin_function"):
        save_optimizer_state(used, tmp_path / "other.fdl")
    assert not (tmp_path / "other.fdl").exists()


def replaced(description, key, value):
    return json.dumps(description | {key: value})


MALFORMED = {
    "not JSON": lambda _: "{",
    "no mapping": lambda _: "[]",
    "a key too many": lambda d: replaced(d, "more", 1),
    "shapes no lists": lambda d: replaced(d, "shapes", 3),
    "unknown tensor": lambda d: replaced(d, "state", {"dict": [[0, {"tensor": "no"}]]}),
    "unknown mark": lambda d: replaced(d, "state", {"set": []}),
    "two marks": lambda d: replaced(d, "state", {"tuple": [], "dict": []}),
    "strange float": lambda d: replaced(d, "state", {"float": "1e3"}),
    "pair of three": lambda d: replaced(d, "state", {"dict": [[0, 1, 2]]}),
    "key a list": lambda d: replaced(d, "state", {"dict": [[[], 1]]}),
    "state a list": lambda d: replaced(d, "state", []),
    "state of parameter 4": lambda d: replaced(d, "state", {"dict": [[4, {"dict": []}]]}),
    "state a number": lambda d: replaced(d, "state", {"dict": [[0, 1]]}),
    "groups a mapping": lambda d: replaced(d, "groups", {"dict": []}),
    "no group": lambda d: replaced(d, "groups", []),
    "group a number": lambda d: replaced(d, "groups", [1]),
    "group without parameters": lambda d: replaced(d, "groups", [{"dict": [["lr", 1]]}]),
    "parameters in disorder": lambda d: replaced(
        d, "groups", [{"dict": [["params", [1, 0, 2, 3]]]}]
    ),
    "endless nesting": lambda d: replaced(d, "class", "Adam").replace("null", "[" * 100_000),
    "nested values": lambda d: replaced(d, "state", 0).replace(
        '"state": 0', '"state": ' + "[" * 900 + "]" * 900
    ),
}


@each_row("kind", MALFORMED)
def test_a_malformed_description_is_refused(tmp_path, used, kind):
    save_optimizer_state(used, tmp_path / "opt.fdl")
    description = json.loads(checkpoint_metadata(tmp_path / "opt.fdl")["optimizer"])
    text = MALFORMED[kind](description)
    save_checkpoint_file(tmp_path / "bad.fdl", [], [], metadata={"optimizer": text})
    refused(used, tmp_path / "bad.fdl", r"bad\.fdl has a damaged optimizer state")
