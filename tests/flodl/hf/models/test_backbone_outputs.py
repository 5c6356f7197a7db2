"""What an encoder computes is returned by value, whoever else runs the same model."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flodl.hf import backbone_outputs
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models.cells import FAMILIES, batch, counted, pair

CLOSE = {"rtol": 0, "atol": 1e-5}
CALLS = 200


# The new family says nothing else about threads than the others.
MOST = [*FAMILIES[:-1], pytest.param("modernbert", marks=pytest.mark.slow)]


@pytest.fixture
def eager_switches():
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def model_of(family, kind=HeadKind.BASE, **fields):
    model, graph = pair(family, kind, **fields)
    graph.set_source_config(
        AutoConfig.from_json_str(model.config.to_json_string()).to_json_string()
    )
    return model, graph


def tensors_of(found):
    """All tensors of a result, one after the other."""
    last, pooled = found.last_hidden_state, found.pooler_output
    states, attentions = found.hidden_states, found.attentions
    return [last, *([] if pooled is None else [pooled]), *(states or ()), *(attentions or ())]


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("family", MOST)
def test_two_threads_get_what_each_asked_for(family):
    _, graph = model_of(family)
    given = [batch_of_ids(**batch(family, lengths)) for lengths in ((11, 4, 7), (6, 9, 3))]

    def call(number):
        with torch.inference_mode():
            whole = number % 3 > 0  # the other thread asks for the rest as well, or does not
            found = backbone_outputs(graph, given[number % 2], whole, whole)
        return tensors_of(found)

    expected = [call(number) for number in range(6)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(call, range(CALLS)))
    wrong = 0
    for number, found in enumerate(results):
        wanted = expected[number % 6]
        assert len(found) == len(wanted)
        wrong += not all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert wrong == 0


@pytest.mark.parametrize("kind", [HeadKind.BASE, HeadKind.SEQCLS, HeadKind.QA])
@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_and_states_are_those_of_the_reference(family, kind):
    fields = {"conv_kernel_size": 3, "conv_act": "gelu"} if family == "deberta-v2" else {}
    model, graph = model_of(family, kind, **fields)
    model.set_attn_implementation("eager")
    inputs = batch(family, left=(1,))
    with torch.no_grad():
        theirs = model(**inputs, output_hidden_states=True, output_attentions=True)
        found = backbone_outputs(graph, batch_of_ids(**inputs), True, True)
    assert len(found.attentions) == len(theirs.attentions) == 3
    assert len(found.hidden_states) == len(theirs.hidden_states) == 4
    for one, other in zip(found.attentions, theirs.attentions, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    for one, other in zip(found.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    if kind is HeadKind.BASE and getattr(theirs, "pooler_output", None) is not None:
        torch.testing.assert_close(found.pooler_output, theirs.pooler_output, **CLOSE)


def test_attentions_and_states_carry_gradients():
    model, graph = model_of("bert")
    model.set_attn_implementation("eager")
    inputs = batch("bert")
    theirs = model(**inputs, output_hidden_states=True, output_attentions=True)
    found = backbone_outputs(graph, batch_of_ids(**inputs), True, True)
    for one in (theirs, found):
        (one.hidden_states[2].square().sum() + one.attentions[1].square().sum()).backward()
    name = "encoder.layer.1.attention.self.query.weight"
    mine, other = (dict(one.named_parameters())[name].grad for one in (graph, model))
    assert float(other.abs().max()) > 1e-3
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_nothing_is_kept_and_nothing_that_was_kept_is_lost():
    _, graph = model_of("bert")
    first, second = (batch("bert", lengths) for lengths in ((5, 5), (9, 3)))
    with torch.no_grad():
        last = graph(**first)
        found = backbone_outputs(graph, batch_of_ids(**second), True)
    assert graph.tagged("last_hidden_state") is last
    assert found.last_hidden_state.shape == (2, 9, 32)


def test_a_model_that_keeps_no_tags_still_returns_everything():
    _, graph = model_of("bert")
    inputs = batch("bert")
    with torch.no_grad():
        expected = backbone_outputs(graph, batch_of_ids(**inputs))
        graph.observe(False)
        found = backbone_outputs(graph, batch_of_ids(**inputs))
    assert torch.equal(found.pooler_output, expected.pooler_output)
    mask = inputs["attention_mask"]
    assert torch.equal(
        counted(found.last_hidden_state, mask), counted(expected.last_hidden_state, mask)
    )


def test_hooks_of_the_encoder_run_once():
    _, graph = model_of("bert", HeadKind.TOKCLS)
    seen = []
    graph.get_submodule("bert").register_forward_hook(lambda *_: seen.append("encoder"))
    graph.get_submodule("bert.encoder").register_forward_hook(lambda *_: seen.append("layers"))
    backbone_outputs(graph, batch_of_ids(**batch("bert")), True, True)
    assert seen == ["layers", "encoder"]


def test_an_error_names_the_node():
    _, graph = model_of("bert")
    ids = torch.full((1, 4), 10_000)
    with pytest.raises(IndexError) as raised:
        backbone_outputs(graph, batch_of_ids(ids, torch.ones_like(ids)))
    assert any("embeddings" in note for note in raised.value.__notes__)
