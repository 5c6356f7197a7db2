from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, TensorDataSet
from flodl.errors import DataError, ShapeMismatch, StateError
from flodl.monitor import EpochMetrics, Monitor
from flodl.train import Worker, record_scalar
from flodl.train.plain_loop.setup import TrainingSetup
from tests.rows import each_row

from .programs import line, loader_as_built, network, sgd, squared_error, training


@pytest.mark.case("runtime", 75)
def test_the_builder_steps_checkpoints_and_reports(capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[int] = []
    versions: list[int] = []
    epochs: list[EpochMetrics] = []

    def counting_sgd(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = sgd(params)
        optimizer.register_step_post_hook(lambda *_: steps.append(len(steps)))
        return optimizer

    def observe(metrics: EpochMetrics) -> None:
        epochs.append(metrics)
        raise ValueError("the disk of the metrics is full")

    (
        Trainer.builder(network, counting_sgd, squared_error)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(2)
        .checkpoint_every(2)
        .checkpoint_fn(lambda version, _: versions.append(version))
        .metrics_fn(observe)
        .run()
    )

    assert len(steps) == 6
    assert versions == [2]
    assert [metrics.epoch for metrics in epochs] == [0, 1]
    assert [metrics.share for metrics in epochs] == [[1.0], [1.0]]
    said = capfd.readouterr().err
    assert "metrics_fn failed in epoch 0 and training continues: ValueError: the disk" in said
    assert "test_trainer.py:" in said


def raw_loop(epochs: int) -> tuple[nn.Module, list[float]]:
    loader = loader_as_built(line(10), 3)
    torch.manual_seed(42)
    model = network()
    optimizer = sgd(list(model.parameters()))
    model.train()
    means = []
    for epoch in range(epochs):
        losses = []
        for batch in loader.epoch(epoch):
            loss = squared_error(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    return model, means


def own_loop(setup: TrainingSetup, epochs: int) -> None:
    loader = loader_as_built(line(10), 3)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            squared_error(setup.model, batch).backward()
            setup.step()


def assert_equal_state(left: nn.Module, right: nn.Module) -> None:
    one, other = left.state_dict(), right.state_dict()
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_builder_set_up_and_plain_loop_give_the_same_numbers_bit_for_bit() -> None:
    plain, means = raw_loop(4)

    handle = training(epochs=4).run()
    assert_equal_state(handle.model, plain)
    assert [metrics.avg_loss for metrics in handle.poll_metrics()] == pytest.approx(
        means, rel=1e-15
    )

    torch.manual_seed(42)
    setup = Trainer.setup(network(), network, sgd, device="cpu")
    own_loop(setup, 4)
    assert_equal_state(setup.model, plain)


def test_another_seed_gives_other_numbers_and_the_same_seed_the_same() -> None:
    def weights(seed: Any) -> Tensor:
        return training().seed(seed).run().join().params[0]

    assert torch.equal(weights(7), weights(7))
    assert torch.equal(weights(7), weights(np.int64(7)))
    assert not torch.equal(weights(7), weights(8))


@each_row("seed", [1.5, "7", None, 1 << 63])
def test_a_seed_that_is_not_an_integer_is_refused_at_the_call(seed: Any) -> None:
    with pytest.raises(ValueError, match="must be an integer of at most 63 bits"):
        training().seed(seed)


@pytest.mark.case("runtime", 76)
def test_set_up_on_the_cpu_leaves_the_model_there_in_training_mode() -> None:
    model = network().eval()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    setup = Trainer.setup(model, network, sgd, device="cpu")
    assert setup.device == torch.device("cpu")
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert all(module.training for module in model.modules())
    held = {id(p) for group in setup.optimizer.param_groups for p in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}


@pytest.mark.case("runtime", 76)
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_set_up_moves_a_cpu_model_and_its_optimizer_to_the_gpu() -> None:
    setup = Trainer.setup(network().eval(), network, sgd)
    assert setup.device.type == "cuda"
    assert all(parameter.is_cuda for parameter in setup.model.parameters())
    assert all(p.is_cuda for group in setup.optimizer.param_groups for p in group["params"])
    assert all(module.training for module in setup.model.modules())


def test_set_up_attaches_the_optimizer_to_a_model_that_wants_it() -> None:
    class Attachable(nn.Linear):
        steps = 0

        def set_optimizer(self, factory: Any) -> None:
            self.optimizer = factory(list(self.parameters()))

        def step(self) -> None:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1

    model = Attachable(1, 1)
    setup = Trainer.setup(model, None, sgd, device="cpu")
    assert model.optimizer is setup.optimizer
    before = model.weight.detach().clone()
    model(torch.ones(2, 1)).sum().backward()
    setup.step()
    assert model.steps == 1
    assert not torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_the_handle_hands_out_metrics_once_and_the_state_as_copies() -> None:
    handle = training(epochs=3).run()
    first, *others = handle.poll_metrics()
    assert first.epoch == 0
    assert first.epoch_ms > 0
    assert first.throughput == pytest.approx(10 / first.epoch_ms)
    assert [metrics.epoch for metrics in others] == [1, 2]
    assert handle.poll_metrics() == []

    state = handle.join()
    kept = [tensor.clone() for tensor in state.params]
    shapes = [parameter.shape for parameter in handle.model.parameters()]
    assert [tensor.shape for tensor in state.params] == shapes
    assert len(state.buffers) == 3
    with torch.no_grad():
        next(handle.model.parameters()).zero_()
    assert torch.equal(state.params[0], kept[0])


def test_the_trained_state_loads_into_a_fresh_model() -> None:
    handle = training().run()
    fresh = network()
    handle.join().load_into(fresh)
    assert_equal_state(fresh, handle.model)
    assert next(fresh.parameters()).requires_grad


def test_the_trained_state_refuses_another_architecture_and_leaves_it_untouched() -> None:
    state = training().run().join()
    other = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    before = other[0].weight.detach().clone()
    with pytest.raises(
        ShapeMismatch, match=r"2.weight has shape \[2, 8\] in the model and \[1, 8\]"
    ):
        state.load_into(other)
    assert torch.equal(other[0].weight, before)
    with pytest.raises(ShapeMismatch, match="has 6 parameters and the model 2"):
        state.load_into(nn.Linear(1, 1))


def test_record_scalar_gives_the_mean_of_the_epoch() -> None:
    calls: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(len(calls))
        record_scalar("call", calls[-1])
        record_scalar("tensor", torch.tensor([float(calls[-1])], requires_grad=True))
        return squared_error(model, batch)

    scalars = [metrics.scalars for metrics in training(train_fn).run().poll_metrics()]
    assert scalars == [{"call": 1.0, "tensor": 1.0}, {"call": 4.0, "tensor": 4.0}]


def test_record_scalar_outside_of_a_step_is_refused() -> None:
    with pytest.raises(StateError, match=r"record_scalar\('x'\) outside of a training step"):
        record_scalar("x", 1.0)
    training().run()
    with pytest.raises(StateError, match="outside"):
        record_scalar("x", 1.0)


def test_a_recorded_tensor_with_several_elements_is_refused() -> None:
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        record_scalar("error", torch.zeros(3))
        return squared_error(model, batch)

    with pytest.raises(ValueError, match=r"'error'\): a tensor of shape \[3\] has 3 elements"):
        training(train_fn).run()


def test_eval_fn_sees_eval_mode_without_gradients_and_joins_the_scalars() -> None:
    seen: list[tuple[bool, bool]] = []

    def evaluate(model: nn.Module) -> dict[str, Any]:
        seen.append((model.training, torch.is_grad_enabled()))
        return {"error": torch.tensor(0.25), "count": 3}

    handle = training().eval_fn(evaluate).run()
    assert seen == [(False, False), (False, False)]
    assert [m.scalars for m in handle.poll_metrics()] == [{"error": 0.25, "count": 3.0}] * 2
    assert all(module.training for module in handle.model.modules())


def test_a_part_kept_in_eval_mode_stays_there_through_an_evaluation() -> None:
    def pin(_: int, worker: Worker) -> None:
        worker.model[1].eval()  # type: ignore[index]

    handle = training().epoch_fn(pin).eval_fn(lambda _: {}).run()
    modes = [module.training for module in handle.model.children()]
    assert modes == [True, False, True, True, True]


def test_epoch_fn_runs_before_each_epoch_and_may_steer_it() -> None:
    rates: list[float] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        rates.append(optimizers[0].param_groups[0]["lr"])
        return squared_error(model, batch)

    optimizers: list[torch.optim.Optimizer] = []

    def halve(epoch: int, worker: Worker) -> None:
        assert (worker.rank, worker.world_size) == (0, 1)
        optimizers[:] = [worker.optimizer]
        before = worker.current_lr
        worker.scale_lr(2.0 if epoch == 0 else 0.5)
        assert worker.current_lr == before * (2.0 if epoch == 0 else 0.5)

    training(train_fn).epoch_fn(halve).run()
    assert rates == [0.1] * 3 + [0.05] * 3


@each_row("name", ["metrics_fn", "checkpoint_fn"])
def test_a_callback_that_raises_is_reported_and_training_goes_on(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oops")

    handle = getattr(training(), name)(fail).run()
    assert len(handle.poll_metrics()) == 2
    said = capfd.readouterr().err
    assert f"{name} failed in epoch 0 and training continues: RuntimeError: oops" in said
    assert f"{name} failed in epoch 1" in said


@each_row(
    ("name", "note"),
    [
        ("epoch_fn", "in epoch_fn before epoch 0 (counted from 0)"),
        ("eval_fn", "in eval_fn after epoch 0 (counted from 0)"),
    ],
)
def test_a_callback_that_the_result_depends_on_ends_the_training(name: str, note: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops") as caught:
        getattr(training(), name)(fail).run()
    assert caught.value.__notes__ == [note]


def test_an_eval_fn_that_returns_no_mapping_is_told_so() -> None:
    with pytest.raises(TypeError, match="eval_fn returned a float; return a mapping"):
        training().eval_fn(lambda _: 0.9).run()  # type: ignore[arg-type,return-value]
    with pytest.raises(
        TypeError, match=r"returned a tensor of shape \[3\] for 'acc'; return one n"
    ):
        training().eval_fn(lambda _: {"acc": torch.ones(3)}).run()
    with pytest.raises(TypeError, match="returned a NoneType for 'acc'; return one number"):
        training().eval_fn(lambda _: {"acc": None}).run()  # type: ignore[arg-type,return-value,dict-item]


def test_the_scheduler_counts_steps_over_the_whole_run_and_keeps_group_ratios() -> None:
    seen: list[list[float]] = []
    asked: list[int] = []

    class Ramp:
        def lr(self, step: int) -> float:
            asked.append(step)
            return 0.01 * (step + 1)

    def two_groups(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(
            [{"params": params[:2], "lr": 1e-3}, {"params": params[2:], "lr": 1e-4}]
        )
        optimizer.register_step_pre_hook(
            lambda o, *_: seen.append([g["lr"] for g in o.param_groups])
        )
        return optimizer

    worlds: list[int] = []

    def schedule(world_size: int) -> Ramp:
        worlds.append(world_size)
        return Ramp()

    (
        Trainer.builder(network, two_groups, squared_error)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(2)
        .scheduler(schedule)
        .run()
    )
    assert worlds == [1]
    assert asked == list(range(6))
    assert seen == [pytest.approx([0.01 * (i + 1), 0.001 * (i + 1)]) for i in range(6)]


def test_gradients_are_clipped_before_the_optimizer_sees_them() -> None:
    norms: list[float] = []

    def watching(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = sgd(params)

        def look(*_: object) -> None:
            grads = [p.grad for p in params if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))

        optimizer.register_step_pre_hook(look)
        return optimizer

    (
        Trainer.builder(network, watching, squared_error)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(1)
        .max_grad_norm(0.01)
        .run()
    )
    assert norms == [pytest.approx(0.01, rel=1e-3)] * 3


def test_a_model_that_observes_itself_ends_its_steps_and_epochs() -> None:
    class Observed(nn.Linear):
        log: list[str]

        def __init__(self) -> None:
            super().__init__(1, 1)
            self.log = []

        def end_step(self) -> None:
            self.log.append("step")

        def end_epoch(self) -> None:
            self.log.append("epoch")

        def latest_metrics(self) -> list[tuple[str, float]]:
            return [("entropy", 0.5)]

    model = Observed()
    handle = (
        Trainer.builder(lambda _: model, sgd, squared_error)
        .dataset(line(4))
        .batch_size(2)
        .num_epochs(1)
        .device("cpu")
        .run()
    )
    assert model.log == ["step", "step", "epoch"]
    assert handle.poll_metrics()[0].scalars == {"entropy": 0.5}


def test_a_monitor_gets_every_epoch_and_the_identity_of_the_model() -> None:
    monitor = Monitor(2, terminal=False)
    training().monitor(monitor).run()
    assert [record.epoch for record in monitor.history] == [0, 1]
    assert monitor.history[0].throughput is not None
    with pytest.raises(StateError):
        monitor.log(2, 1.0)


def test_the_epochs_can_also_be_logged_by_hand(capfd: pytest.CaptureFixture[str]) -> None:
    handle = training().run()
    monitor = Monitor(2)
    for metrics in handle.poll_metrics():
        monitor.log(metrics.epoch, metrics.epoch_ms / 1000, metrics)
    monitor.finish()
    assert "epoch 2/2  loss=" in capfd.readouterr().out


def test_policy_and_backend_change_nothing_on_one_device() -> None:
    state = training().policy("cadence").backend("nccl").run().join()
    assert torch.equal(state.params[0], training().run().join().params[0])


def never(*_: object) -> Any:
    raise AssertionError("nothing may be built")


@each_row("missing", ["dataset", "batch_size", "num_epochs"])
def test_a_missing_setting_is_refused_before_anything_is_built(missing: str) -> None:
    builder = Trainer.builder(never, never, never)
    settings = {"dataset": line(10), "batch_size": 3, "num_epochs": 2}
    for name, value in settings.items():
        if name != missing:
            getattr(builder, name)(value)
    with pytest.raises(ValueError, match=rf"Trainer.builder needs \.{missing}\(…\) before \.run"):
        builder.run()


@each_row(
    ("setting", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -3),
        ("batch_size", 2.5),
        ("num_epochs", 0),
        ("checkpoint_every", 0),
        ("max_grad_norm", 0.0),
        ("max_grad_norm", float("nan")),
        ("metrics_fn", "not a function"),
    ],
)
def test_a_setting_out_of_range_is_refused_at_once(setting: str, value: object) -> None:
    builder = Trainer.builder(never, never, never)
    with pytest.raises(ValueError, match=f"{setting}={value!r}: it must be"):
        getattr(builder, setting)(value)


def test_an_empty_data_set_is_refused_before_anything_is_built() -> None:
    empty = TensorDataSet(torch.empty(0, 1))
    builder = Trainer.builder(never, never, never).dataset(empty).batch_size(1).num_epochs(1)
    with pytest.raises(DataError, match="is empty"):
        builder.run()


@each_row("device", ["gpu", "cuda:99"])
def test_a_device_that_does_not_exist_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"device='{device}'"):
        training().device(device).run()
    with pytest.raises(ValueError, match=f"device='{device}'"):
        Trainer.setup(network(), None, sgd, device=device)


def test_factories_that_make_something_else_are_refused() -> None:
    def run(model: Any, optimizer: Any) -> None:
        builder = Trainer.builder(model, optimizer, squared_error)
        builder.dataset(line(4)).batch_size(2).num_epochs(1).run()

    with pytest.raises(TypeError, match=r"model factory returned a str, not a torch.nn.Module"):
        run(lambda _: "model", sgd)
    with pytest.raises(TypeError, match=r"optimizer factory returned a list, not a torch.optim"):
        run(network, list)


@each_row(
    ("loss", "complaint"),
    [
        (lambda loss: loss.item(), "a float, not a loss tensor"),
        (lambda _: None, "a NoneType, not a loss tensor"),
        (lambda loss: loss.expand(3), r"a loss of shape \[3\]; a loss is one number: reduce"),
        (lambda loss: loss.detach(), r"a loss of shape \[\] without gradient"),
    ],
)
def test_a_loss_that_is_not_scalar_is_refused_with_its_shape(loss: Any, complaint: str) -> None:
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = loss(squared_error(model, batch))
        return result

    with pytest.raises(ValueError, match=f"train_fn returned .*{complaint}"):
        training(train_fn).run()


def test_a_loss_with_one_element_in_a_dimension_is_scalar_enough() -> None:
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return squared_error(model, batch).reshape(1)

    state = training(train_fn).run().join()
    assert torch.equal(state.params[0], training().run().join().params[0])


def test_an_exception_of_the_training_step_keeps_its_type_and_says_where() -> None:
    calls: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(0)
        if len(calls) == 5:
            batch["z"]
        return squared_error(model, batch)

    with pytest.raises(KeyError, match="no 'z'; it has 'x', 'y'") as failure:
        training(train_fn).run()
    assert failure.value.__notes__ == ["in epoch 1, step 1 (both counted from 0)"]
