"""``torch.export`` takes models by the names of their arguments, for batches of all sizes."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models.cells import CELLS, FAMILIES, batch, pair

CLOSE = {"rtol": 0, "atol": 1e-5}
OTHERS = ((9, 5), (3, 14, 8, 1, 6), (17,))
"""Lengths of the rows of other batches."""
LONGEST = 62
"""Tokens of the longest text: the models have 64 positions, and those of RoBERTa begin at 2."""


def shapes_of(inputs):
    """Every input of any size, by its name."""
    both = {0: Dim("batch", max=64), 1: Dim("length", max=LONGEST)}
    return dict.fromkeys(inputs, both)


def assert_serves_other_batches(program, graph, family, names, left=()):
    for lengths in OTHERS:
        inputs = {name: batch(family, lengths, left=left)[name] for name in names}
        with torch.no_grad():
            expected = graph(**inputs, places=torch.empty(0, dtype=torch.int64))
            torch.testing.assert_close(program.module()(**inputs), expected, **CLOSE)


FAST = [("bert", HeadKind.QA), ("deberta-v2", HeadKind.SEQCLS)]
"""Heads and families with most of what is special; an export takes seconds."""


@pytest.mark.parametrize(
    ("family", "kind"),
    [one if one in FAST else pytest.param(*one, marks=pytest.mark.slow) for one in CELLS],
)
def test_a_model_is_exported_by_the_names_of_its_arguments(family, kind):
    _, graph = pair(family, kind, num_hidden_layers=2)
    inputs = batch(family, (11, 4, 7), left=(1,))
    program = export(graph, (), inputs, dynamic_shapes=shapes_of(inputs))
    assert_serves_other_batches(program, graph, family, inputs, left=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_may_be_given_by_place(family):
    _, graph = pair(family, HeadKind.SEQCLS)
    names = ("input_ids", "attention_mask")
    inputs = {name: batch(family, (11, 4, 7))[name] for name in names}
    program = export(graph, tuple(inputs.values()), dynamic_shapes=shapes_of(inputs))
    for lengths in OTHERS:
        given = tuple(batch(family, lengths)[name] for name in names)
        with torch.no_grad():
            torch.testing.assert_close(program.module()(*given), graph(*given), **CLOSE)


def test_an_exported_model_is_saved_and_loaded(tmp_path):
    _, graph = pair("bert", HeadKind.TOKCLS, num_hidden_layers=1)
    inputs = batch("bert")
    program = export(graph, (), inputs, dynamic_shapes=shapes_of(inputs))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert_serves_other_batches(loaded, graph, "bert", inputs)


def test_another_name_is_refused():
    _, graph = pair("bert", HeadKind.BASE)
    with pytest.raises(ValueError, match="this graph takes no further input 'input'"):
        graph(torch.ones(1, 2, dtype=torch.int64), input=torch.ones(1, 2))
