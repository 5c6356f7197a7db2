"""Where padding is left out, where it must not be, and who says so."""

import copy
import warnings

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder
from flodl.hf import AutoConfig, BertForTokenClassification, set_unpad
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models.cells import (
    FAMILIES,
    LABELS,
    batch,
    counted,
    output_of,
    pair,
    without_dropout,
)
from tests.rows import each_row

CLOSE = {"rtol": 0, "atol": 1e-5}


def shapes_seen(graph, call):
    """Shapes of what the first layer of an encoder returns during a call."""
    seen = []
    layer = next(
        module for name, module in graph.named_modules() if name.endswith(("layer.0", "layers.0"))
    )
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(list(output.shape)))
    call()
    hook.remove()
    return seen


# --- The switch ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unpad", "sparse", "dense"),
    [(True, [31, 32], [43, 32]), (False, [4, 11, 32], [4, 11, 32]), ("auto", [31, 32], None)],
)
def test_a_model_leaves_out_what_it_is_told_to(unpad, sparse, dense):
    _, graph = pair("bert", HeadKind.TOKCLS)
    set_unpad(graph, unpad)
    for one in (graph, copy.deepcopy(graph)):
        assert shapes_seen(one, lambda one=one: one(**batch("bert"))) == [sparse]
        few = batch("bert", (11, 11, 11, 10))
        assert shapes_seen(one, lambda one=one, few=few: one(**few)) == [dense or [4, 11, 32]]


def test_heads_and_whatever_holds_models_can_be_told():
    model, graph = pair("bert", HeadKind.TOKCLS)
    config = AutoConfig.from_json_str(model.config.to_json_string())
    head = BertForTokenClassification.from_config(config, num_labels=LABELS)
    set_unpad(head, False)
    assert shapes_seen(head.graph, lambda: head.graph(**batch("bert"))) == [[4, 11, 32]]
    both = nn.ModuleList([graph, head.graph])
    set_unpad(both, True)
    for one in both:
        assert shapes_seen(one, lambda one=one: one(**batch("bert"))) == [[31, 32]]


def test_what_is_no_model_or_no_decision_is_refused():
    with pytest.raises(ValueError, match="this Linear is and holds no model of flodl"):
        set_unpad(nn.Linear(1, 1), True)
    with pytest.raises(ValueError, match="this Graph is and holds no model of flodl"):
        set_unpad(FlowBuilder.from_(nn.Linear(1, 1)).build(), False)
    _, graph = pair("bert", HeadKind.BASE)
    for unpad in ("always", 1, None):
        with pytest.raises(ValueError, match="unpad is True, False or 'auto', not"):
            set_unpad(graph, unpad)


# --- Masks that are not one element per token ----------------------------------------------


@pytest.mark.parametrize("unpad", [True, False, "auto"])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_mask_for_all_rows_is_not_taken_for_one_element_per_token(rows, unpad):
    model, graph = pair("bert", HeadKind.BASE)
    set_unpad(graph, unpad)
    ids = torch.randint(5, 60, (6, 6), generator=torch.Generator().manual_seed(0))
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None].expand(rows, 1, 6, 6)
    with torch.no_grad():
        expected = model(ids, attention_mask=causal).last_hidden_state
        torch.testing.assert_close(graph(ids, causal), expected, **CLOSE)
        torch.testing.assert_close(graph(ids, causal.long()), expected, **CLOSE)


@pytest.mark.parametrize("unpad", [True, False])
def test_a_row_that_a_mask_leaves_nothing_to_look_at_trains(unpad):
    _, graph = pair("bert", HeadKind.TOKCLS)
    set_unpad(graph.train(), unpad)
    mask = batch("bert")["attention_mask"].bool()[:, None, None]
    mask[2] = False
    logits = graph(batch("bert")["input_ids"], mask)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in graph.parameters())


@pytest.fixture
def both(family, fields):
    """A model of the reference and ours, for all rows of a table."""
    return pair(family, HeadKind.SEQCLS, **fields, **without_dropout(family))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        *((family, {}) for family in FAMILIES),
        ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
        ("deberta-v2", {"relative_attention": False, "position_biased_input": True}),
        ("deberta-v2", {"pos_att_type": ["p2c"], "share_att_key": False}),
    ],
)
@each_row("unpad", [True, False, "auto"])
@each_row("left", [(1, 3), (0, 1, 2, 3)], ids=["some", "all"])
def test_a_head_that_reads_padding_reads_what_the_references_does(both, family, left, unpad):
    model, graph = both
    model.zero_grad()
    graph.zero_grad()
    set_unpad(graph, unpad)
    inputs = batch(family, left=left)
    theirs, mine = model(**inputs).logits, graph(**inputs)
    torch.testing.assert_close(mine, theirs, **CLOSE)
    weight = torch.arange(1.0, LABELS + 1)
    for logits in (theirs, mine):
        (logits @ weight).mean().backward()
    found = dict(graph.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, **CLOSE, msg=name)


@pytest.mark.parametrize("unpad", [True, False, "auto"])
@pytest.mark.parametrize("kind", [HeadKind.SEQCLS, HeadKind.TOKCLS, HeadKind.QA])
def test_a_deberta_with_a_row_of_padding_alone_does_what_the_reference_does(kind, unpad):
    model, graph = pair("deberta-v2", kind)
    set_unpad(graph, unpad)
    inputs = batch("deberta-v2")
    inputs["attention_mask"][2] = 0
    theirs, mine = output_of(model(**inputs), kind), graph(**inputs)
    mask = inputs["attention_mask"]
    torch.testing.assert_close(counted(mine, mask), counted(theirs, mask), **CLOSE)
    mine.sum().backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in graph.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_no_rows_has_no_outputs(family):
    _, graph = pair(family, HeadKind.SEQCLS)
    none = torch.empty(0, 7, dtype=torch.int64)
    assert graph(none).shape == graph(none, none).shape == (0, LABELS)


# --- What records a call -------------------------------------------------------------------


@pytest.mark.parametrize("traced_on", [(11, 11, 11, 11), (11, 4, 7, 9)])
@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_a_traced_model_goes_by_the_mask_of_each_call(family, traced_on):
    _, graph = pair(family, HeadKind.BASE)
    example = batch(family, traced_on)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(
            graph, (example["input_ids"], example["attention_mask"]), check_trace=False
        )
    for lengths in ((11, 4, 7, 9), (11, 11, 11, 11), (5, 8), (2,)):
        inputs = batch(family, lengths)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        with torch.no_grad():
            found, expected = traced(ids, mask), graph(ids, mask)
        torch.testing.assert_close(counted(found, mask), counted(expected, mask), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_can_be_computed_on_the_meta_device(family):
    _, graph = pair(family, HeadKind.BASE)
    inputs = {name: value.to("meta") for name, value in batch(family).items()}
    assert graph.to("meta")(**inputs).shape == (4, 11, 32)


# --- What is kept --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HeadKind.MLM, HeadKind.TOKCLS])
def test_scores_of_all_words_are_kept_by_nobody_but_the_caller(kind):
    _, graph = pair("bert", kind)
    logits = graph(**batch("bert"))
    kept = graph.tagged("logits")
    assert kept is (None if kind is HeadKind.MLM else logits)
