"""What a file holds goes where the present tensors and states are, in their form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.checkpoint.extra_state import placed
from flodl.checkpoint.forms import assembled
from flodl.checkpoint.generators import same
from flodl.checkpoint.optimizer import NAMES, NamedOptimizer, parameters_by_name
from flodl.checkpoint.sharded import become
from flodl.errors import CheckpointError
from tests.rows import each_row


@each_row(
    "value",
    [
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
        torch.tensor(5),
        torch.tensor([[1.0], [2.0]]),
    ],
)
def test_a_buffer_becomes_what_was_saved_in_any_shape_and_type(value: Tensor) -> None:
    buffer = torch.zeros(2)
    become(buffer, value)
    assert buffer.dtype is value.dtype
    assert torch.equal(buffer, value)


def test_tensors_of_a_state_go_to_the_device_of_the_present_ones() -> None:
    saved = {"list": [torch.ones(2), 1], "tuple": (torch.ones(3),), "new": [torch.ones(1)]}
    here = torch.zeros(2, device="meta")
    made = placed(saved, {"list": [here], "tuple": (here,)})
    assert [type(made[name]) for name in made] == [list, tuple, list]
    assert [made["list"][0].device.type, made["list"][1]] == ["meta", 1]
    assert (made["tuple"][0].device.type, made["tuple"][0].shape) == ("meta", (3,))
    assert made["new"][0].device.type == "cpu"


def test_a_complex_tensor_begins_where_torch_may_compute_with_it() -> None:
    pairs = torch.arange(5.0, dtype=torch.float64)
    odd = pairs[int(pairs.data_ptr() % 16 == 0) :][:4]
    inside = assembled({"kind": "complex128", "shape": [2]}, [odd.reshape(2, 2)])
    assert inside.data_ptr() % 16 == 0
    assert torch.equal(torch.view_as_real(inside), odd.reshape(2, 2))
    aligned = pairs[int(pairs.data_ptr() % 16 > 0) :][:4]
    whole = assembled({"kind": "complex128", "shape": [2]}, [aligned.reshape(2, 2)])
    assert whole.data_ptr() == aligned.data_ptr()


@each_row(
    ("one", "other"),
    [
        (torch.ones(2), [1.0, 1.0]),
        ([1.0, 1.0], torch.ones(2)),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(2), torch.tensor([1.0, 2.0])),
        ((1, 2), (1, 2, 3)),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_states_that_differ_are_not_the_same(one: object, other: object) -> None:
    assert not same(one, other)
    assert same(one, one)


# --- Names of the parameters of an optimizer -----------------------------------------------------


def named() -> NamedOptimizer:
    model = nn.Linear(2, 1)
    known = {**parameters_by_name(model), "later": nn.Parameter(torch.ones(1))}
    return NamedOptimizer(torch.optim.SGD(model.parameters(), 0.1), known)


def test_a_group_that_the_program_adds_later_comes_with_the_state() -> None:
    saved, here = named(), named()
    saved.optimizer.add_param_group({"params": [saved._parameters["later"]], "lr": 0.5})
    state = saved.state_dict()
    here.check(state[NAMES], "file")
    here.load_state_dict(state)
    assert here.names() == [["weight", "bias"], ["later"]]
    assert [group["lr"] for group in here.optimizer.param_groups] == [0.1, 0.5]


@each_row(
    ("names", "told"),
    [
        ([["weight", "bias"], ["stranger"]], "only the file has stranger"),
        ([["weight", "bias"], ["later", "stranger"]], "only the file has later, stranger"),
        ([["weight"]], "only this program has bias"),
    ],
)
def test_a_group_of_other_parameters_is_refused(names: list[list[str]], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        named().check(names, "file")


@each_row("names", ["weight", ["weight", "bias"], [["weight", 1]], None])
def test_names_of_another_form_are_damaged(names: object) -> None:
    with pytest.raises(ValueError, match="its names are not lists of texts"):
        named().check(names, "file")
