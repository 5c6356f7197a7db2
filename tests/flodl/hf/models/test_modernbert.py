"""What only ModernBERT has, beside transformers: windows, rotary positions, its settings."""

import math

import pytest
import torch
from torch.nn import functional

from flodl.hf.build import build
from flodl.hf.encoder_model import set_unpad
from flodl.hf.families import ModernBertConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers import attention
from flodl.hf.layers.attention import attend_in_blocks, within
from tests.flodl.hf.models.cells import (
    LABELS,
    batch,
    counted,
    ours,
    output_of,
    pair,
    reference,
    without_dropout,
)
from tests.rows import each_row

CLOSE = {"rtol": 0, "atol": 1e-5}
FULL, NEAR = "full_attention", "sliding_attention"


def both(model, graph, kind, inputs):
    """Outputs at tokens, and all gradients, of the reference and of ours."""
    mask = inputs["attention_mask"]
    weights = None
    found = []
    for one, call in (
        (model, lambda: output_of(model(**inputs), kind)),
        (graph, lambda: graph(**inputs)),
    ):
        one.zero_grad()
        output = counted(call(), mask)
        if weights is None:
            weights = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(4))
        (output @ weights).mean().backward()
        named = dict(one.named_parameters())
        slopes = {name: value.grad for name, value in named.items() if value.grad is not None}
        found.append((output.detach(), slopes))
    return found


def assert_same(model, graph, kind, inputs):
    theirs, mine = both(model, graph, kind, inputs)
    torch.testing.assert_close(mine[0], theirs[0], **CLOSE)
    assert theirs[1].keys() == mine[1].keys()
    for name, slope in theirs[1].items():
        torch.testing.assert_close(mine[1][name], slope, **CLOSE, msg=name)


def assert_same_in_both_layouts(model, graph, kind, inputs):
    """Compare without padding and with it."""
    for unpad in (True, False):
        set_unpad(graph, unpad)
        assert_same(model, graph, kind, inputs)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (HeadKind.BASE, {"layer_types": [NEAR, NEAR, FULL], "local_attention": 1}),
        (HeadKind.BASE, {"layer_types": [FULL] * 3, "local_attention": 5}),
        (HeadKind.BASE, {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
        (HeadKind.BASE, {"hidden_activation": "silu", "norm_eps": 1e-2, "pad_token_id": None}),
        (HeadKind.SEQCLS, {"classifier_pooling": "mean", "classifier_bias": True}),
        (HeadKind.TOKCLS, {"classifier_activation": "relu", "norm_bias": True}),
        (HeadKind.MLM, {"tie_word_embeddings": False, "decoder_bias": False}),
    ],
)
def test_every_setting_acts_as_in_the_reference(kind, fields):
    model, graph = pair("modernbert", kind, **fields)
    assert_same_in_both_layouts(model, graph, kind, batch("modernbert"))


@pytest.mark.parametrize("shape", ["left", "holes", "none"])
@pytest.mark.parametrize("kind", [HeadKind.BASE, HeadKind.SEQCLS])
def test_distances_are_those_in_the_padded_row(kind, shape):
    model, graph = pair("modernbert", kind, num_hidden_layers=4)
    inputs = batch("modernbert", left=(1, 3) if shape == "left" else ())
    if shape == "holes":
        inputs["attention_mask"][0, 3:6] = inputs["attention_mask"][2, 1] = 0
    if shape == "none":
        inputs["attention_mask"][:] = 1
    assert_same_in_both_layouts(model, graph, kind, inputs)


def test_positions_can_be_given():
    model, graph = pair("modernbert", HeadKind.BASE)
    inputs = batch("modernbert")
    inputs["position_ids"] = torch.arange(11).flip(0)[None].expand(4, -1).contiguous() * 3
    assert_same(model, graph, HeadKind.BASE, inputs)


@pytest.mark.parametrize("unpad", [True, False])
def test_windows_of_padding_alone_train(unpad):
    _, graph = pair("modernbert", HeadKind.TOKCLS, layer_types=[NEAR] * 3)
    set_unpad(graph.train(), unpad)
    inputs = batch("modernbert", (11, 1, 2, 9))
    inputs["attention_mask"][3] = 0
    logits = graph(**inputs)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(one.grad.isfinite().all() for one in graph.parameters() if one.grad is not None)


# --- Blocks ----------------------------------------------------------------------------------


@each_row(
    ("rows", "length", "window", "block"),
    [(2, 37, 4, 8), (1, 300, 64, 64), (3, 16, 5, 16), (2, 1, 3, 4)],
)
@each_row("masked", [True, False])
def test_blocks_give_what_all_pairs_give(rows, length, window, block, masked):
    draw = torch.Generator().manual_seed(length)
    parts = [
        torch.randn(rows, length, 3, 8, dtype=torch.float64, generator=draw)
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    ]
    seen = torch.rand(rows, 1, 1, length, generator=draw) > 0.5 if masked else None
    near = within(length, window, torch.device("cpu"))
    near = near if seen is None else near & seen
    expected = functional.scaled_dot_product_attention(*parts, attn_mask=near)
    found = attend_in_blocks(*parts, window, block=block, seen=seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=draw)
    slopes = [torch.autograd.grad(one, parts, upstream) for one in (found, expected)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [(50, 41, 7), (50, 50, 50)])
@pytest.mark.parametrize("kind", [HeadKind.TOKCLS, HeadKind.SEQCLS])
@pytest.mark.parametrize("unpad", [True, False])
def test_a_model_computes_long_rows_in_blocks(monkeypatch, lengths, kind, unpad):
    monkeypatch.setattr(attention, "BLOCK", 8)
    calls = []
    real = attention.attend_in_blocks

    def counted_call(*parts, **options):
        calls.append(parts[0].shape)
        return real(*parts, **{"block": 8, **options})

    monkeypatch.setattr(attention, "attend_in_blocks", counted_call)
    fields = {"layer_types": [FULL, NEAR, NEAR], **without_dropout("modernbert")}
    model, graph = pair("modernbert", kind, **fields)
    set_unpad(graph, unpad)
    assert_same(model, graph, kind, batch("modernbert", lengths))
    rows = 2 if unpad and lengths[1] < 50 else 1
    # Where it may, the last layer of a classifier of rows computes first tokens alone.
    layers = 1 if kind is HeadKind.SEQCLS and unpad else 2
    assert len(calls) == rows * layers


# --- Mistakes show ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"local_attention": 6},
        {"local_attention": 2},
        {"global_rope_theta": 1000.0},
        {"local_rope_theta": 1000.0},
        {"layer_types": (FULL, FULL, FULL)},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
    ],
)
def test_a_small_mistake_shows(change):
    model = reference("modernbert", HeadKind.BASE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(6)
    inputs = batch("modernbert")
    with torch.no_grad():
        theirs = model(**inputs).last_hidden_state
        right = ours(model, HeadKind.BASE)(**inputs)
        wrong = ours(model, HeadKind.BASE, **change)(**inputs)
    mask = inputs["attention_mask"]
    torch.testing.assert_close(counted(right, mask), counted(theirs, mask), rtol=0, atol=2e-5)
    assert (counted(wrong, mask) - counted(theirs, mask)).abs().max() > 1e-3


# --- New models ------------------------------------------------------------------------------


def test_new_weights_are_drawn_as_in_the_reference():
    config = ModernBertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=64, pad_token_id=0, norm_bias=True,
        initializer_range=0.1, initializer_cutoff_factor=2.0, num_labels=LABELS,
    )  # fmt: skip
    graph = build(config, HeadKind.SEQCLS, device="cpu", seed=1)
    # The standard deviation that is left of a normal distribution cut at two of them.
    shrunk = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    spreads = {
        "model.embeddings.tok_embeddings.weight": 0.1,
        "model.layers.1.attn.Wqkv.weight": 0.1,
        "model.layers.1.mlp.Wi.weight": 0.1,
        "model.layers.1.attn.Wo.weight": 0.05,
        "model.layers.1.mlp.Wo.weight": 0.05,
        "head.dense.weight": 0.05,
        "classifier.weight": 0.125,
    }
    for name, std in spreads.items():
        values = graph.get_parameter(name)
        assert values.abs().max() <= 2 * std, name
        count = values.numel()
        assert values.std().item() == pytest.approx(std * shrunk, rel=3 / math.sqrt(count)), name
    assert torch.equal(graph.get_parameter("model.final_norm.bias"), torch.zeros(64))
    again = build(config, HeadKind.SEQCLS, device="cpu", seed=1)
    assert all(map(torch.equal, graph.parameters(), again.parameters()))
