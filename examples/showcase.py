"""Every construct of FlowBuilder in one model that trains.

    python examples/showcase.py

Sensors report eight readings at a time, each with a context. The quantity to predict carries over
from one report to the next, so that the model must remember. Prints the parts of the model, how
far training brings the error down, and what the loops did in the last forward.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import (
    ArgmaxSelector,
    BatchArgmaxSelector,
    FlowBuilder,
    Graph,
    LearnedHalt,
    LoopBody,
    MergeOp,
    NamedInputModule,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
    TraceEmit,
)

READINGS = 8
WIDTH = 16
SENSORS = 32
"""Size of a batch: every sensor has a state of its own."""


class Memory(NamedInputModule):
    """Mixes the stream with its own previous output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Advance the state [B, WIDTH] by one report [B, WIDTH]."""
        state: Tensor = self.cell(x, refs["memory"])
        return state


class Refine(LoopBody):
    """Moves the state towards the context, and publishes how far."""

    def __init__(self) -> None:
        super().__init__()
        self.update = nn.Linear(2 * WIDTH, WIDTH)

    def step(self, x: Tensor, refs: Mapping[str, Tensor], emit: TraceEmit) -> Tensor:
        """One iteration on a state [B, WIDTH]."""
        moved = torch.tanh(self.update(torch.cat([x, refs["hint"]], dim=1)))
        emit.publish("move", moved.detach().norm())
        return x + moved


def build_encoder() -> Graph:
    """A graph that becomes a part of another one: readings [B, 8] in, features [B, WIDTH] out."""
    return (
        FlowBuilder.from_(nn.Linear(READINGS, WIDTH))
        .tag("scan")
        .internal("scan")  # seen here, hidden from the model around it
        .also_with(
            nn.Linear(WIDTH, WIDTH, bias=False), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        )
        .through(nn.LayerNorm(WIDTH))
        .tag("features")
        .label("encoder")
        .build()
    )


def build_model() -> Graph:
    """Readings [B, 8] and a context [B, WIDTH] in, predictions [B, 1] out; one line per step."""
    return (
        FlowBuilder.from_(build_encoder())
        .entry("readings")  # the name of the first argument
        .tag("encoded")
        .input("context")  # the second argument of the call
        # A side branch: computed and named, while the stream goes on as it was.
        .fork(nn.Linear(WIDTH, 1))
        .tag("novelty")
        # Three views of the stream, averaged.
        .split([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        .tag_group("views")
        .merge(MergeOp.MEAN)
        .also(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), name="residual")
        # All experts run and are weighed; the router sees the context as well.
        .gate(SoftmaxRouter(WIDTH, 2), [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        .using("context")
        .tag("mixed")
        # Each row goes to one of the branches.
        .switch(ArgmaxSelector(WIDTH, 2), [nn.Tanh(), nn.GELU()])
        # The whole batch goes to one of the branches.
        .batch_switch(BatchArgmaxSelector(WIDTH, 2), [nn.Identity(), nn.Softsign()])
        # The same small layer on every quarter of the features.
        .map(nn.Linear(WIDTH // 4, WIDTH // 4))
        .batched()
        .slices(4)
        # Add two earlier values, the context and the encoder's output.
        .through(StateAdd())
        .using("context", "encoded")
        .tag("hint")
        # Loops: a fixed number of times; each row until it says stop; each while it is small.
        .loop_body(Refine())
        .for_n(3)
        .using("hint")
        .loop_body(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        .until_cond(LearnedHalt(WIDTH), max_iter=4)
        .loop_body(lambda x: 1.5 * x)
        .while_cond(ThresholdHalt(2.0), max_iter=8)
        # A reference to a tag that comes later is the value of the previous call: a state.
        .through(Memory())
        .using("memory")
        .tag("memory")
        .through(nn.Linear(WIDTH, 1))
        .label("showcase")
        .build()
    )


class Sensors:
    """What they report: the next value is half the last one plus what readings and context say."""

    def __init__(self) -> None:
        self.level = torch.zeros(SENSORS, 1)

    def report(self) -> tuple[Tensor, Tensor, Tensor]:
        """Readings [B, 8], context [B, WIDTH] and the value to predict [B, 1]."""
        readings = torch.randn(SENSORS, READINGS)
        context = torch.rand(SENSORS, WIDTH)
        news = readings[:, :4].mean(dim=1, keepdim=True) * context[:, :4].mean(dim=1, keepdim=True)
        self.level = 0.5 * self.level + news
        return readings, context, self.level


def train(model: Graph, windows: int, reports: int = 4) -> None:
    """Train on windows of several reports: gradients reach back to the window's start."""
    model.set_optimizer(lambda parameters: torch.optim.Adam(parameters, lr=5e-3))
    sensors = Sensors()
    for _ in range(windows):
        losses = []
        for _ in range(reports):
            readings, context, value = sensors.report()
            losses.append(mse_loss(model(readings, context), value))
        loss = torch.stack(losses).mean()
        loss.backward()
        model.record("loss", loss)
        model.step()  # also cuts the state's gradient here; its value stays
        model.end_epoch()


def main() -> None:
    """Train and look inside."""
    torch.manual_seed(0)
    model = build_model()
    print(model.tree_summary())
    train(model, windows=120)

    losses = model.trend("loss").values
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    print(f"error in the first 20 windows {first:.4f}, in the last 20 {last:.4f}")

    # On a copy of the state: training could go on afterwards where it was.
    with torch.no_grad(), model.preserve_state():
        model.reset_state()
        readings, context, _ = Sensors().report()
        model(readings, context)
        print(f"it remembers something: {model.has_state()}")
    print("moves of the loop:", len(model.traces("move") or []))
    print("views of the stream:", model.tag_group("views"))


if __name__ == "__main__":
    main()
