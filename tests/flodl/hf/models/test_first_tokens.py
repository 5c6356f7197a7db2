"""Classifiers of rows read first tokens: their last layer computes no others."""

import warnings

import pytest
import torch
from torch import nn

from flodl.hf import backbone_outputs, set_unpad
from flodl.hf.head_kind import HeadKind
from flodl.hf.surgery import drop_layers
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models.cells import FAMILIES, LABELS, batch, ours, pair, without_dropout
from tests.rows import each_row

CLOSE = {"rtol": 0, "atol": 1e-6}


def layers_of(graph):
    """What the encoder runs, in the order of the first call of each."""
    ends = ("TransformerLayer", "DebertaLayer", "ModernBertLayer")
    return [module for module in graph.modules() if type(module).__name__ in ends]


def shapes_seen(graph, call):
    """Shapes of what every layer of an encoder returns during a call."""
    seen = []
    hooks = [
        layer.register_forward_hook(lambda _, __, output: seen.append(list(output.shape)))
        for layer in layers_of(graph)
    ]
    call()
    for hook in hooks:
        hook.remove()
    return seen


def in_full(graph, call):
    """What a call returns if every layer computes every position."""
    set_unpad(graph, False)
    found = call()
    set_unpad(graph, "auto")
    return found


def causal(size):
    return torch.ones(size, size, dtype=torch.bool).tril()[None, None]


def masks(inputs):
    """The forms that an attention mask may have, by name."""
    counts = inputs["attention_mask"]
    rows, size = counts.shape
    added = torch.randn(rows, 1, size, size, generator=torch.Generator().manual_seed(3))
    return {
        "none": None,
        "per token": counts,
        "full": torch.ones_like(counts),
        "wide": counts.bool()[:, None, None],
        "per pair": causal(size).expand(rows, 1, size, size),
        "one for all": causal(size),
        "added": added,
        "added per key": added[:, :, :1],
    }


@pytest.mark.parametrize(("lengths", "places"), [((11, 4, 7, 9), 31), ((11, 11, 11, 11), None)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_run_of_a_layer_returns_first_tokens(family, lengths, places):
    _, graph = pair(family, HeadKind.SEQCLS)
    inputs = batch(family, lengths)
    whole = [places, 32] if places else [4, 11, 32]
    assert shapes_seen(graph, lambda: graph(**inputs)) == [whole, whole, [4, 32]]
    rows = [[4, 11, 32]] * 3
    assert in_full(graph, lambda: shapes_seen(graph, lambda: graph(**inputs))) == rows


@pytest.mark.parametrize("kind", [kind for kind in HeadKind if kind is not HeadKind.SEQCLS])
@pytest.mark.parametrize("family", FAMILIES)
def test_where_all_tokens_are_read_all_are_computed(family, kind):
    _, graph = pair(family, kind)
    # Scores of answers go over all positions of a row, so padding counts there.
    expected = [4, 11, 32] if kind is HeadKind.QA else [31, 32]
    assert shapes_seen(graph, lambda: graph(**batch(family))) == [expected] * 3
    set_unpad(graph, True)
    assert shapes_seen(graph, lambda: graph(**batch(family))) == [[31, 32]] * 3


@pytest.fixture
def graph(family):
    """A classifier of rows, for all rows of a table."""
    return pair(family, HeadKind.SEQCLS, **without_dropout(family))[1]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "deberta-v2"])
@each_row("form", masks(batch("bert")))
def test_results_and_gradients_are_those_of_computing_everything(graph, family, form):
    compare_with_everything(graph, family, form)


@pytest.mark.parametrize("family", ["deberta-v2"])
@each_row("form", ["none", "per token"])
def test_results_of_deberta_are_those_of_computing_everything(graph, family, form):
    compare_with_everything(graph, family, form)


def compare_with_everything(graph, family, form):
    """Compare logits and gradients with those of layers that compute every position."""
    inputs = batch(family, left=(1,) if family != "deberta-v2" else ())
    mask = masks(inputs)[form]

    def call():
        graph.zero_grad()
        logits = graph(inputs["input_ids"], mask)
        (logits @ torch.arange(1.0, LABELS + 1)).sum().backward()
        return logits.detach(), [parameter.grad.clone() for parameter in graph.parameters()]

    expected, slopes = in_full(graph, call)
    found, mine = call()
    torch.testing.assert_close(found, expected, **CLOSE)
    assert max(float(slope.abs().max()) for slope in slopes) > 1e-2
    for one, other in zip(mine, slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("albert", {"inner_group_num": 2}),
        ("albert", {"num_hidden_groups": 3, "inner_group_num": 2}),
        ("albert", {"num_hidden_layers": 1}),
        ("bert", {"num_hidden_layers": 1}),
        ("deberta-v2", {"conv_kernel_size": 3}),
        ("deberta-v2", {"conv_kernel_size": 3, "num_hidden_layers": 1}),
        ("deberta-v2", {"relative_attention": False, "position_biased_input": True}),
    ],
)
def test_encoders_of_other_shapes_do_likewise(family, fields):
    model, graph = pair(family, HeadKind.SEQCLS, **fields)
    inputs = batch(family)
    with torch.no_grad():
        torch.testing.assert_close(graph(**inputs), model(**inputs).logits, rtol=0, atol=1e-5)


def test_one_layer_that_is_left_ends_the_encoder():
    _, graph = pair("bert", HeadKind.SEQCLS)
    drop_layers(graph, [1, 2])

    def call():
        return graph(**batch("bert"))

    assert shapes_seen(graph, call) == [[4, 32]]
    with torch.no_grad():
        torch.testing.assert_close(call(), in_full(graph, call), **CLOSE)


def test_an_encoder_that_is_asked_itself_returns_all_tokens():
    model, graph = pair("bert", HeadKind.SEQCLS)
    graph.set_source_config(model.config.to_json_string())
    inputs = batch("bert")
    with torch.no_grad():
        logits = graph(**inputs)
        found = backbone_outputs(
            graph, batch_of_ids(inputs["input_ids"], inputs["attention_mask"]), hidden_states=True
        )
    assert found.last_hidden_state.shape == (4, 11, 32)
    assert found.hidden_states is not None
    assert [list(states.shape) for states in found.hidden_states] == [[4, 11, 32]] * 4
    assert logits.shape == (4, LABELS)


def test_places_that_were_given_may_lack_first_tokens():
    _, graph = pair("roberta", HeadKind.SEQCLS)
    inputs = batch("roberta", (11, 4, 7, 9))
    places = inputs["attention_mask"].flatten().nonzero().flatten()[1:]
    seen = shapes_seen(graph, lambda: graph(inputs["input_ids"], places=places))
    assert seen == [[30, 32]] * 3


class AllTokens(nn.Module):
    """A layer of somebody's own, which knows nothing of what is read."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, tokens, layout):
        return self.inner(tokens, layout.before_the_end)


@pytest.mark.parametrize("lengths", [(11, 4, 7, 9), (11, 11, 11, 11), (1, 1, 1, 1)])
def test_a_layer_of_ones_own_may_return_all_tokens(lengths):
    _, graph = pair("bert", HeadKind.SEQCLS)
    inputs = batch("bert", lengths)
    with torch.no_grad():
        expected = graph(**inputs)
        graph.replace(
            "bert.encoder.layer.2", AllTokens(graph.get_submodule("bert.encoder.layer.2"))
        )
        torch.testing.assert_close(graph(**inputs), expected, **CLOSE)


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2"])
def test_a_traced_classifier_serves_batches_of_other_sizes(family):
    model, _ = pair(family, HeadKind.SEQCLS)
    graph = ours(model, HeadKind.SEQCLS)
    example = batch(family)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(
            graph, (example["input_ids"], example["attention_mask"]), check_trace=False
        )
        for lengths in ((11, 4, 7, 9), (5, 8), (2,)):
            inputs = batch(family, lengths)
            inputs.pop("token_type_ids", None)
            found = traced(inputs["input_ids"], inputs["attention_mask"])
            torch.testing.assert_close(found, model(**inputs).logits, rtol=0, atol=1e-5)
