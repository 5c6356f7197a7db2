"""Compiled models: one piece, few compilations, the same outputs."""

import pytest
import torch

from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models.cells import CELLS, batch, counted, pair

SOME = (
    pytest.param("deberta-v2", HeadKind.BASE, marks=pytest.mark.slow),
    ("bert", HeadKind.SEQCLS),
)
"""What is compiled with one layer. Tracing DeBERTa takes longest. Other slow tests
compile all cells with all layers."""

LENGTHS = ((11, 4, 7, 9), (8, 8, 3, 5), (17, 2, 9, 6), (5, 4, 4, 3), (13, 13, 12, 1))


def counting(backend):
    """A backend that counts compilations."""
    # Here, because it takes seconds that every collection of the tests would need.
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def runs_alike(family, kind, backend, **fields):
    """Run a compiled and a plain model on batches of five lengths; returns compilations."""
    _, graph = pair(family, kind, **fields)
    _, plain = pair(family, kind, **fields)
    counter = counting(backend)
    graph.compile(backend=counter, fullgraph=True)
    for lengths in LENGTHS:
        inputs = batch(family, lengths)
        with torch.no_grad():
            expected, found = plain(**inputs), graph(**inputs)
        mask = inputs["attention_mask"]
        torch.testing.assert_close(counted(found, mask), counted(expected, mask), rtol=0, atol=1e-5)
    return counter.frame_count


@pytest.mark.case("hf", 47)
@pytest.mark.parametrize(("family", "kind"), SOME)
def test_a_model_is_one_piece_and_compiles_twice_at_most(family, kind):
    assert 1 <= runs_alike(family, kind, "aot_eager", num_hidden_layers=1) <= 2


@pytest.mark.slow
@pytest.mark.case("hf", 47)
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_every_cell_is_right_and_one_piece_when_compiled(family, kind):
    assert 1 <= runs_alike(family, kind, "inductor") <= 2


@pytest.mark.slow
def test_places_given_from_outside_let_a_compiled_model_leave_padding_out():
    _, graph = pair("bert", HeadKind.BASE, num_hidden_layers=1)
    _, plain = pair("bert", HeadKind.BASE, num_hidden_layers=1)
    counter = counting("aot_eager")
    graph.compile(backend=counter, fullgraph=True)
    for lengths in LENGTHS:
        inputs = batch("bert", lengths)
        mask = inputs["attention_mask"]
        places = mask.flatten().nonzero().flatten()
        with torch.no_grad():
            expected, found = plain(**inputs), graph(**inputs, places=places)
        torch.testing.assert_close(counted(found, mask), counted(expected, mask), rtol=0, atol=1e-5)
        assert not found[mask == 0].any()
    assert counter.frame_count <= 2
