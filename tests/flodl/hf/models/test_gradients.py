"""Gradients beside those of transformers."""

import pytest
import torch

from flodl.hf.encoder_model import set_unpad
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models.cells import CELLS, batch, counted, output_of, pair, without_dropout
from tests.rows import each_row


@pytest.mark.case("hf", 10)
@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_every_parameter_gets_the_references_gradient(family, kind, unpad):
    model, graph = pair(family, kind, **without_dropout(family))
    set_unpad(graph, unpad)
    model.train()
    graph.train()
    inputs = batch(family)
    mask = inputs["attention_mask"]
    theirs, mine = output_of(model(**inputs), kind), graph(**inputs)
    weights = torch.randn(theirs.shape[-1], generator=torch.Generator().manual_seed(2))
    for one in (theirs, mine):
        (counted(one, mask) @ weights).mean().backward()
    expected = dict(model.named_parameters(remove_duplicate=False))
    found = dict(graph.named_parameters(remove_duplicate=False))
    assert expected.keys() <= found.keys()
    nonzero = 0
    for name, parameter in expected.items():
        if parameter.grad is None:
            assert found[name].grad is None or not found[name].grad.any(), name
            continue
        nonzero += bool(parameter.grad.any())
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=0, atol=1e-5, msg=name)
    assert nonzero > 10


@pytest.mark.case("hf", 10)
@each_row("family", ["bert", "roberta", "xlm-roberta", "distilbert", "albert"])
def test_a_tied_table_is_one_parameter(family):
    model, graph = pair(family, HeadKind.MLM)
    names = [name for name, _ in graph.named_parameters()]
    assert not [name for name in names if name.endswith("decoder.weight")]
    words = graph.get_parameter(f"{model.base_model_prefix}.embeddings.word_embeddings.weight")
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.1)
    slots = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(p is words for p in slots) == 1
    graph(torch.tensor([[7, 8]])).sum().backward()
    # From the look-up only two rows, from decoding all of them.
    assert int(words.grad.abs().sum(1).gt(0).sum()) == 60
