"""Nested values as JSON and tensors, and snapshots of tensors."""

import json

import numpy as np
import pytest
import torch

from flodl.checkpoint.snapshot import snapshot
from flodl.checkpoint.values import decode, encode


def test_ways_that_are_spelt_alike_lead_to_their_own_tensors():
    one, two, three, four = torch.tensor([1, 2, 3, 4])
    value = {"a/b": one, "a": {"b": two}, 1: three, "1": four, "again": one}
    tensors = {}
    text = json.dumps(encode(value, "state", tensors))
    assert decode(json.loads(text), tensors.__getitem__) == value


def test_every_plain_value_and_key_comes_back_with_its_type():
    keys = [None, True, 2, 0.5, "text", 1 + 2j, (1, ("a", None))]
    value = [{key: key for key in keys}, (float("nan"), -float("inf")), complex(float("inf"), 0)]
    back = decode(json.loads(json.dumps(encode(value, "state", {}))), {}.__getitem__)
    assert repr(back) == repr(value)
    for odd in ({1}, b"bytes", object(), {frozenset(): 1}, {torch.ones(1): 1}, [range(2)]):
        with pytest.raises(ValueError, match=r"^state(/0)? (is|has a key that is) a "):
            encode(odd, "state", {})
    for damaged in ({"dict": [[[1], 2]]}, {"dict": [[{"dict": []}, 2]]}, {"complex": [1]}):
        with pytest.raises(ValueError, match="is not a"):
            decode(damaged, {}.__getitem__)


def test_numbers_of_numpy_come_back_as_those_of_python():
    """A rate from ``np.logspace`` in float32, or an int64 as the length of a schedule."""
    value = {"lr": np.float32(0.1), "steps": np.int64(7), np.int64(3): np.bool_(True)}
    found = decode(json.loads(json.dumps(encode(value, "state", {}))), {}.__getitem__)
    assert found == {"lr": float(np.float32(0.1)), "steps": 7, 3: True}
    assert [type(one) for one in found.values()] == [float, int, bool]
    with pytest.raises(ValueError, match="state is a datetime"):
        encode(np.datetime64("2026-01-31T10:00:00"), "state", {})


def test_a_snapshot_reuses_each_buffer_once():
    shared = torch.ones(3)
    former = snapshot({"a": shared, "b": shared})
    assert former["a"] is former["b"]
    values = {"a": torch.tensor([1.0, 2, 3]), "b": torch.tensor([4.0, 5, 6])}
    copies = snapshot(values, former)
    assert copies["a"] is former["a"]
    assert [copy.tolist() for copy in copies.values()] == [[1, 2, 3], [4, 5, 6]]
