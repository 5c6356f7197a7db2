"""Which probabilities of a configuration act where: as in the reference, while training."""

import pytest
import torch

from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.layout import Layout
from tests.flodl.hf.models.cells import CELLS, batch, output_of, pair, without_dropout

FIELDS = {
    "distilbert": ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    "albert": ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"),
    "deberta-v2": (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "pooler_dropout",
        "cls_dropout",
    ),
    "modernbert": (
        "embedding_dropout",
        "attention_dropout",
        "mlp_dropout",
        "classifier_dropout",
    ),
}
USUAL = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


def acts(model, call):
    """Whether training changes what a call returns."""
    with torch.no_grad():
        before = call(model.eval())
        return not torch.allclose(before, call(model.train()), atol=1e-6)


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_a_probability_acts_where_it_does_in_the_reference(family, kind):
    torch.manual_seed(0)
    fields = FIELDS.get(family, USUAL)
    none = {**without_dropout(family), **dict.fromkeys(fields, 0.0)}
    inputs = batch(family, (11, 11, 11, 11))
    for field in fields:
        model, graph = pair(family, kind, num_hidden_layers=1, **{**none, field: 0.5})
        theirs = acts(model, lambda model: output_of(model(**inputs), kind))
        assert acts(graph, lambda graph: graph(**inputs)) == theirs, field


@pytest.mark.parametrize(("family", "drops"), [("albert", False), ("bert", True)])
def test_what_a_layer_returns_is_dropped_out_but_for_albert(family, drops):
    fields = {**without_dropout(family), "hidden_dropout_prob": 0.5}
    _, graph = pair(family, HeadKind.BASE, **fields)
    encoder = graph.get_submodule("encoder")
    layer = encoder.albert_layer_groups[0].albert_layers[0] if not drops else encoder.layer[0]
    attended = layer.attention.dense if not drops else layer.attention.output.dense
    with torch.no_grad():
        attended.weight.zero_()
        attended.bias.zero_()
    none = torch.empty(0, dtype=torch.int64)
    tokens = torch.randn(4, 11, 32, generator=torch.Generator().manual_seed(1))
    assert acts(layer, lambda layer: layer(tokens, Layout(4, 11, none, none))) is drops
