"""Graphs worth drawing."""

from __future__ import annotations

from torch import nn

from flodl.graph import (
    FixedSelector,
    FlowBuilder,
    Graph,
    LearnedHalt,
    NamedInputModule,
    SoftmaxRouter,
    StateAdd,
)


class AddSide(NamedInputModule):
    """The stream plus everything it is given."""

    def forward_named(self, x, refs):
        return sum(refs.values(), x)


def encoder() -> Graph:
    """A labelled graph with a loop that ends when it likes."""
    return (
        FlowBuilder.from_(nn.Linear(4, 4))
        .tag("read")
        .loop_body(nn.Linear(4, 4), name="scan")
        .while_cond(LearnedHalt(4), 5)
        .label("encoder")
        .build()
    )


def everything() -> Graph:
    """Every kind of node, references in both directions, tags, a nested graph. Width 4 all over."""
    return (
        FlowBuilder.from_(nn.Linear(4, 4))
        .tag("ctx")
        .input("side")
        .through(nn.LayerNorm(4))
        .through(nn.GELU())
        .also(nn.Linear(4, 4))
        .split([nn.Linear(4, 4), nn.Identity()])
        .merge("mean")
        .through(AddSide())
        .using("ctx", "side")
        .loop_body(nn.Linear(4, 4))
        .for_n(3)
        .gate(SoftmaxRouter(4, 2), [nn.Linear(4, 4), encoder()])
        .using("ctx")
        .switch(FixedSelector(1), [nn.Linear(4, 4), nn.Tanh()])
        .map(nn.Linear(2, 2))
        .slices(2)
        .through(StateAdd())
        .using("memory")
        .through(encoder())
        .tag("enc")
        .through(nn.BatchNorm1d(4))
        .tag("memory")
        .through(nn.Linear(4, 2))
        .tag("out")
        .build()
    )


def chain(length: int) -> Graph:
    """Nodes one after the other."""
    flow = FlowBuilder()
    for _ in range(length - 1):
        flow.through(nn.Identity())
    return flow.build()


def tower(blocks: int) -> Graph:
    """Residual blocks one above the other."""
    flow = FlowBuilder.from_(nn.Linear(4, 4))
    for _ in range(blocks):
        block = FlowBuilder.from_(nn.LayerNorm(4)).through(nn.Linear(4, 4)).build()
        flow.also(block)
    return flow.through(nn.Linear(4, 2)).build()
