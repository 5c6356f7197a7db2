"""On a simulated GPU, `auto` ends with the fastest way of every model, and finds it cheaply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flodl.train.step.tuning import Tuning
from tests.flodl.train.simulated_gpu import Model, SimulatedGpu, decide, engine_on
from tests.rows import each_row

STEPS = 1_000_000

# Steps of 2.3, 5.3, 12.4 and 12.7 ms were measured on a GPU, as were the ratios of their ways.
MODELS = {
    "mlp": Model(1.5, 1.2, update=(0.8, 0.3), fused=(0.12, 0.1)),
    "convnet": Model(1.2, 4.9, compiled=(0.4, 0.6), rows=0.95),
    "convnet that is not captured once compiled": Model(
        1.2, 4.9, compiled=(0.4, 0.6), captures="plain"
    ),
    "gru_seq": Model(11.2, 3.4, update=(1.2, 0.3), compiled=None),
    "transformer": Model(
        3.0, 11.6, update=(0.9, 1.1), fused=(0.1, 0.4), compiled=(0.4, 0.9), autotuned=0.9
    ),
    "lstm_seq": Model(15.0, 6.0, compiled=None, captures=""),
    "conv_autoenc": Model(1.0, 3.0, rows=1.3, compiled=(0.5, 0.9)),
    "residual_tower": Model(4.0, 1.5, captures="plain", compiled=(0.2, 0.7)),
    "gated_routing": Model(2.5, 2.4, captures=""),
    "iterative_refine": Model(6.0, 1.0),
    "feedback_fixed": Model(0.6, 0.58, compiled=(0.9, 1.2)),
}


@each_row("name", list(MODELS))
def test_auto_ends_with_the_fastest_way_of_a_pure_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]
    gpu = SimulatedGpu(model)
    engine = engine_on(gpu, monkeypatch, steps=STEPS)
    steps = decide(engine)
    taken = model.step_s(engine.tuning)
    assert taken <= 1.02 * model.best_s(), engine.report()
    assert taken <= model.step_s(Tuning())
    # What the decision has cost beside plain steps, and what the training would take without
    # compiling, which comes last.
    cost = max(gpu.host, gpu.device) - steps * model.step_s(Tuning())
    without = model.step_s(replace(engine.tuning, compiled=False, autotuned=False))
    assert cost <= 0.02 * STEPS * without, engine.report()
    # A look at the clock waits for the device: never in each step.
    assert gpu.waits <= 2 * steps


def test_what_happens_between_two_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(2.0, 150.0, compiled=(0.4, 0.6), captures="")
    gpu = SimulatedGpu(model)
    engine = engine_on(gpu, monkeypatch, steps=100_000)

    def evaluate(step: int) -> None:
        if step % 3 == 2:
            engine.present()
            gpu.busy_host(300.0)

    decide(engine, between=evaluate)
    assert engine.tuning == Tuning(compiled=True), engine.report()


@each_row("steps", [60, 500, 3_000, 20_000])
def test_a_short_training_tries_what_its_length_pays_for(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["gru_seq"]
    gpu = SimulatedGpu(model)
    engine = engine_on(gpu, monkeypatch, steps=steps)
    taken = min(steps, decide(engine, steps))
    cost = max(gpu.host, gpu.device) - taken * model.step_s(Tuning())
    assert cost <= 0.02 * steps * model.step_s(Tuning())
    assert (gpu.captures > 0) is (steps > 500)
    assert gpu.compilations == 0


def test_a_step_that_is_not_declared_pure_runs_only_where_the_program_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimulatedGpu(MODELS["mlp"])
    engine = engine_on(gpu, monkeypatch, steps=STEPS, pure=False)
    decide(engine)
    assert engine.tuning == Tuning(fused=True)
    assert (gpu.captures, gpu.compilations) == (0, 0)


def test_a_graph_is_captured_once_however_often_ways_alternate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimulatedGpu(MODELS["mlp"])
    engine = engine_on(gpu, monkeypatch, steps=STEPS)
    decide(engine)
    assert str(engine.tuning) == "fused optimizer + compiled + CUDA graph"
    assert gpu.captures == 2
