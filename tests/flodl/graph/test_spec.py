"""Architectures as JSON: written, read back, and refused when they come from an enemy."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn

from flodl.errors import BuildError
from flodl.graph import FlowBuilder, Graph, Lambda, LoopBody, NamedInputModule
from flodl.graph.routing import (
    ArgmaxSelector,
    FixedSelector,
    LearnedHalt,
    Reshape,
    SigmoidRouter,
    SoftmaxRouter,
    ThresholdHalt,
)
from flodl.nn.layers import GaussianBlur, SelfAttention
from tests import fork_server
from tests.rows import each_row


def double(x):
    return 2 * x


class AddContext(NamedInputModule):
    """Keeps its argument under its own name."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward_named(self, x, refs):
        return x + self.scale * sum(refs.values())


class Emitter(LoopBody):
    """A loop body with a layer and two traces."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, width)

    def step(self, x, refs, emit):
        y = self.layer(x) + sum(refs.values())
        emit.publish("y", y)
        return y


class Masked(nn.Module):
    """Looks at numbers while it is made, which torch's meta device does not have."""

    def __init__(self, width, keep=0.5):
        super().__init__()
        self.width = width
        self.keep = keep
        order = torch.arange(width).tolist()
        self.register_buffer("mask", torch.tensor([float(i < keep * width) for i in order]))

    def forward(self, x):
        return x * self.mask


class Scaled(nn.Module):
    """Needs its hook: what it keeps is not what it was given."""

    def __init__(self, factor):
        super().__init__()
        self.factor = 10 * factor
        self.layer = nn.Linear(3, 3)

    def flodl_spec(self):
        return {"factor": self.factor // 10}

    def forward(self, x):
        return self.factor * self.layer(x)


class Residual(nn.Module):
    """Takes a module as its argument."""

    def __init__(self, block, norm=nn.LayerNorm):
        super().__init__()
        self.block = block
        self.norm = norm

    def forward(self, x):
        return x + self.block(x)


def round_trip(graph, allow=(), **options):
    """Through a JSON text and back; the hash is equal, and so is what it computes."""
    text = json.dumps(graph.to_spec(), allow_nan=False)
    made = Graph.from_spec(json.loads(text), allow, **options)
    assert made.structural_hash() == graph.structural_hash()
    assert made.topology == graph.topology
    assert made.to_spec() == graph.to_spec()
    return made


def assert_same_outputs(graph, *inputs, allow=(), tmp_path):
    made = round_trip(graph, allow)
    graph.save_checkpoint(tmp_path / "weights.fdl")
    report = made.load_checkpoint(tmp_path / "weights.fdl")
    assert report.missing == report.skipped == []
    graph.eval()
    made.eval()
    assert torch.equal(made(*inputs), graph(*inputs))
    for tag in graph.tag_names():
        assert torch.equal(made.tagged(tag), graph.tagged(tag))
    return made


def classifier():
    return (
        FlowBuilder.from_(nn.Linear(4, 8))
        .tag("enc")
        .through(nn.GELU())
        .also(nn.Linear(8, 8, bias=False), name="res")
        .split([nn.Linear(8, 2), nn.Linear(8, 2)])
        .tag_group("heads")
        .merge("mean")
        .tag("_out")
        .internal("enc")
        .label("classifier")
        .build()
    )


# --- Round trips -----------------------------------------------------------------------------


def test_names_tags_groups_and_label_come_back(tmp_path):
    made = assert_same_outputs(classifier(), torch.randn(3, 4), tmp_path=tmp_path)
    assert made.label == "classifier"
    assert made.tag_names() == ["enc", "heads_0", "heads_1", "_out"]
    assert made.tag_group("heads") == ["heads_0", "heads_1"]
    assert made.topology.internal == {"enc"}
    assert "res.weight" in made.state_dict()


def test_every_construct_comes_back(tmp_path):
    inner = (
        FlowBuilder.from_(nn.Linear(4, 4))
        .tag("first")
        .input("ctx")
        .through(AddContext(0.5))
        .using("ctx")
        .label("inner")
        .build()
    )
    graph = (
        FlowBuilder.from_(nn.Linear(4, 4))
        .input("ctx")
        .tag("start")
        .through(AddContext(2.0))
        .using("start", "ctx", "later")
        .through(inner)
        .using("ctx")
        .loop_body(Emitter(4))
        .for_n(3)
        .using("start")
        .loop_body(nn.Tanh())
        .until_cond(LearnedHalt(4), 5)
        .loop_body(Lambda(double))
        .while_cond(ThresholdHalt(3), 4)
        .gate(SoftmaxRouter(4, 2), [nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))])
        .using("start")
        .gate(SigmoidRouter(4, 2), [nn.Linear(4, 4), nn.Identity()])
        .switch(ArgmaxSelector(4, 2), [nn.Linear(4, 4), nn.Dropout(0.25)])
        .switch(FixedSelector(1), [nn.Linear(4, 4), nn.ELU()])
        .map(nn.Linear(4, 4))
        .each()
        .map(nn.Linear(2, 2))
        .slices(2)
        .map(nn.Softmax(dim=-1))
        .batched()
        .over("start")
        .fork(nn.Linear(4, 1))
        .tag("side")
        .through(Reshape(-1, 2, 2))
        .through(nn.Flatten())
        .tag("later")
        .build()
    )
    allow = [AddContext, Emitter, double]
    x, ctx = torch.randn(3, 4), torch.randn(3, 4)
    made = assert_same_outputs(graph, x, ctx, allow=allow, tmp_path=tmp_path)
    assert torch.equal(made(x, ctx), graph(x, ctx))  # with what the first call left
    assert made.child_graph("inner") is not None
    assert len(made.traces("y")) == 3


def test_recurrent_and_attention_layers_come_back(tmp_path):
    graph = (
        FlowBuilder.from_(nn.Embedding(10, 8, padding_idx=0))
        .through(nn.LSTM(8, 8, num_layers=2, batch_first=True, bidirectional=True))
        .through(nn.Linear(16, 8))
        .through(nn.GRU(8, 8, bias=False, batch_first=True))
        .through(nn.RNN(8, 8, nonlinearity="relu", batch_first=True))
        .through(SelfAttention(8, 2))
        .through(nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, bias=False))
        .build()
    )
    assert_same_outputs(graph, torch.randint(0, 10, (2, 5)), tmp_path=tmp_path)


@each_row(
    "layer",
    [
        nn.LSTM(4, 4, proj_size=3),
        nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=3, vdim=2),
        nn.TransformerDecoderLayer(4, 2, activation=nn.functional.silu, norm_first=True),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, batch_first=True), 3),
        nn.Bilinear(2, 3, 4, bias=False),
        nn.ReLU6(),
        nn.Unflatten(1, (2, 3)),
        nn.LazyBatchNorm1d,
        nn.RMSNorm((2, 3), eps=1e-3),
        nn.SyncBatchNorm(3, momentum=None),
        nn.LSTMCell(2, 3, bias=False),
        nn.ModuleDict({"a": nn.ReLU(), "b": nn.Sequential()}),
    ],
    ids=lambda layer: getattr(layer, "__name__", type(layer).__name__),
)
def test_further_layers_come_back(layer):
    if layer is nn.LazyBatchNorm1d:
        layer = layer()
        layer(torch.randn(3, 5))  # is an ordinary BatchNorm1d from here on
    made = round_trip(FlowBuilder.from_(layer).build(), [nn.functional.silu])
    assert repr(made) == repr(FlowBuilder.from_(layer).build())


def test_image_layers_come_back(tmp_path):
    graph = (
        FlowBuilder.from_(nn.Conv2d(3, 4, (3, 1), stride=2, padding="valid", bias=False))
        .through(nn.BatchNorm2d(4, eps=1e-3, affine=False))
        .through(nn.PReLU(4))
        .through(nn.GroupNorm(2, 4))
        .through(nn.ConvTranspose2d(4, 4, 3, output_padding=1, stride=2))
        .through(GaussianBlur(0.5))
        .through(nn.MaxPool2d(2, ceil_mode=True))
        .through(nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True))
        .through(nn.AdaptiveAvgPool2d((1, None)))
        .through(nn.Flatten(2))
        .through(nn.LayerNorm(14, elementwise_affine=False))
        .build()
    )
    assert_same_outputs(graph, torch.randn(2, 3, 11, 11), tmp_path=tmp_path)


def test_classes_of_the_caller_come_back_when_allowed(tmp_path):
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    graph = (
        FlowBuilder.from_(Residual(block))
        .through(Scaled(2))
        .through(Masked(3))
        .through(Lambda(torch.sin))
        .through(Lambda(nn.functional.gelu))
        .build()
    )
    allow = [Residual, Scaled, Masked, torch.sin, nn.functional.gelu]
    assert_same_outputs(graph, torch.randn(2, 3), allow=allow, tmp_path=tmp_path)
    for missing in allow:
        with pytest.raises(BuildError, match="is not allowed here"):
            Graph.from_spec(graph.to_spec(), [thing for thing in allow if thing is not missing])


def test_a_class_inside_a_function_can_be_allowed():
    class Local(nn.Module):
        def __init__(self, size: int):
            super().__init__()
            self.size = size

        def forward(self, x):
            return x + self.size

    made = round_trip(FlowBuilder.from_(Local(3)).build(), [Local])
    assert made(torch.zeros(1)).item() == 3


def test_every_value_of_an_argument_comes_back():
    class Keeper(nn.Module):
        def __init__(self, **values):
            super().__init__()
            self.values = values

        def flodl_spec(self):
            return self.values

        def forward(self, x):
            return x

    values = {
        "numbers": [1, -2, 0.5, math.inf, -math.inf, 2**62],
        "nothing": None,
        "flags": (True, False),
        "nested": {"a": [(1, "b"), {"c": ()}]},
        "dtype": torch.bfloat16,
        "shape": torch.Size([2, 3]),
        "layers": [nn.Linear, {"of mine": (Masked, torch.tanh)}],
        "function": double,
        "text": "ä\n\u2028",
    }
    made = round_trip(
        FlowBuilder.from_(Keeper(**values)).build(), [Keeper, Masked, double, torch.tanh]
    )
    assert made.keeper_1.values == values
    broken = round_trip(FlowBuilder.from_(Keeper(x=math.nan)).build(), [Keeper])
    assert math.isnan(broken.keeper_1.values["x"])


def test_shared_modules_and_parameters_stay_shared(tmp_path):
    shared = nn.Linear(4, 4)
    tied = nn.Linear(4, 4)
    tied.weight = shared.weight
    nested = FlowBuilder.from_(shared).through(nn.Sequential(nn.ReLU(), shared)).build()
    graph = FlowBuilder.from_(shared).through(nested).through(nested).through(tied).build()
    made = assert_same_outputs(graph, torch.randn(2, 4), tmp_path=tmp_path)
    assert len(list(made.parameters())) == len(list(graph.parameters())) == 3
    assert made.linear_1 is made.graph_2.linear_1
    assert made.graph_2 is made.graph_3
    assert made.linear_4.weight is made.linear_1.weight
    assert made.linear_4.bias is not made.linear_1.bias


def test_precision_comes_back_whatever_the_default_is(tmp_path):
    graph = FlowBuilder.from_(nn.Linear(2, 2).double()).through(nn.BatchNorm1d(2).double()).build()
    spec = graph.to_spec()
    x = torch.randn(4, 2, dtype=torch.float64)
    assert_same_outputs(graph, x, tmp_path=tmp_path)
    assert torch.get_default_dtype() is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert graph.to_spec() == spec
        single = FlowBuilder.from_(nn.Linear(2, 2).float()).build()
        made = round_trip(single)
        assert made.linear_1.weight.dtype is torch.float32
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_describing_changes_nothing():
    graph = classifier().eval()
    graph.freeze("enc", stats=True)
    before = copy.deepcopy(graph.state_dict())
    state = torch.get_rng_state()
    spec = graph.to_spec()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in graph.state_dict().items())
    assert not graph.training
    assert graph.is_frozen("enc")
    assert spec == classifier().to_spec()


def test_frozen_and_pinned_layers_are_described_like_others():
    graph = FlowBuilder.from_(nn.BatchNorm1d(3)).tag("norm").build()
    spec = graph.to_spec()
    graph.freeze("norm", stats=True)
    assert graph.to_spec() == spec


def test_a_description_can_be_built_without_memory():
    with torch.device("meta"):
        made = Graph.from_spec(classifier().to_spec())
    there = dict(classifier().named_parameters())
    assert dict(made.named_parameters()).keys() == there.keys()
    assert all(parameter.is_meta for parameter in made.parameters())


def test_a_graph_made_in_another_process_is_the_same(tmp_path):
    graph = classifier()
    (tmp_path / "spec.json").write_text(json.dumps(graph.to_spec()))
    graph.save_checkpoint(tmp_path / "weights.fdl")
    x = torch.randn(2, 4)
    program = f"""
import json, torch, warnings
warnings.simplefilter("error")
from flodl.graph import Graph
graph = Graph.from_spec(json.load(open({str(tmp_path / "spec.json")!r})))
graph.load_checkpoint({str(tmp_path / "weights.fdl")!r})
print(graph.structural_hash(), *graph(torch.tensor({x.tolist()})).flatten().tolist())
"""
    ran = fork_server.python("-c", program, torch=True, abrupt=True)
    assert ran.returncode == 0, ran.stderr
    there = ran.stdout.split()
    assert there[0] == graph.structural_hash()
    assert [float(v) for v in there[1:]] == pytest.approx(graph(x).flatten().tolist(), abs=1e-6)
