"""What recording a value costs the training thread, and whether a slow reader can hold it up.

python -m benchmarks.log_cost --output docs/benchmarks/log_cost.md
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure import (
    Bar,
    command_line,
    interleaved,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    seconds_of,
    spread,
    table,
)
from benchmarks.trainer_overhead import Task, lightning, quiet
from flodl.monitor import EpochMetrics, EpochRecord, Monitor
from flodl.monitor.records import Finish, RunInfo, StepSeries
from flodl.train.metrics import ScalarLog, record_scalar, recording_into

CALLS = 2000
BARS = {"record_scalar(float)": Bar(1, form="g"), "Monitor.log": Bar(50, form="g")}
"""The most microseconds that a call may take."""

WATCHED = Bar(1.02)
"""The most that a broken reader may cost, in steps without a reader."""

Call = Callable[[], object]


class SlowSink:
    """A reader that takes half a second for everything, as one whose disk or socket hangs."""

    def open(self, info: RunInfo) -> None:
        """Nothing to prepare."""

    def record(self, record: EpochRecord) -> None:  # noqa: ARG002
        """Take an epoch, slowly."""
        time.sleep(0.5)

    def steps(self, series: Sequence[StepSeries]) -> None:  # noqa: ARG002
        """Take pieces of curves, slowly."""
        time.sleep(0.5)

    def finish(self, summary: Finish) -> None:
        """Nothing to close."""


class DeadSink(SlowSink):
    """A reader that fails whenever it is given something."""

    def record(self, record: EpochRecord) -> None:  # noqa: ARG002
        """Fail."""
        raise OSError("the reader is gone")

    def steps(self, series: Sequence[StepSeries]) -> None:  # noqa: ARG002
        """Fail."""
        raise OSError("the reader is gone")


class Steps:
    """Stands for the engine that counts steps."""

    global_step = 0


def repeated(call: Call, times: int) -> None:
    """One timed moment."""
    for _ in range(times):
        call()


def epoch(number: int) -> EpochMetrics:
    """An epoch as a Trainer reports it."""
    return EpochMetrics(number, 0.5, {"accuracy": 0.9, "norm": 3.0}, 100.0, 5.0, [1.0])


def record_calls(rounds: int) -> dict[str, list[float]]:
    """Seconds per call of everything that records one value, and of torch's writer beside it."""
    kept: deque[float] = deque(maxlen=100_000)
    calls: dict[str, Call] = {
        "deque.append": lambda: kept.append(0.5),
        "record_scalar(float)": lambda: record_scalar("accuracy", 0.5),
    }
    one = torch.tensor(0.5)
    calls["record_scalar(CPU tensor)"] = lambda: record_scalar("norm", one)
    with contextlib.ExitStack() as stack:
        if find_spec("tensorboard") is not None:
            calls["SummaryWriter.add_scalar"] = summary_writer(stack)
        log = ScalarLog(Steps())
        stack.enter_context(recording_into(log))

        def fresh(call: Call) -> None:
            repeated(call, CALLS)
            list(log.take())  # as the Trainer does about once a second
            kept.clear()

        subjects = {name: partial(fresh, call) for name, call in calls.items()}
        seconds = interleaved(subjects, rounds)
    return {name: [each / CALLS for each in values] for name, values in seconds.items()}


def summary_writer(stack: contextlib.ExitStack) -> Call:
    """TensorBoard's own writer into a folder that goes away."""
    from torch.utils.tensorboard import SummaryWriter

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    writer = SummaryWriter(folder)
    stack.callback(writer.close)
    return lambda: writer.add_scalar("accuracy", 0.5, 1)


def monitor_calls(rounds: int) -> dict[str, list[float]]:
    """Seconds per call of a monitor's hand-over, with a page, a CSV and a log behind it."""
    taken: dict[str, list[float]] = {
        "Monitor.log": [],
        "Monitor.log_steps, 1 value": [],
        "Monitor.log_steps, 2 × 1000 values": [],
    }
    one = [StepSeries("loss", [0], [0.5])]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        monitor = Monitor(rounds + 1)
        monitor.export_csv(Path(folder) / "metrics.csv")
        monitor.write_log(Path(folder) / "training.log")
        for number in range(rounds + 1):
            steps = range(number * 1000, (number + 1) * 1000)
            many = [StepSeries(name, list(steps), [0.5] * 1000) for name in ("loss", "norm")]
            hand_overs: list[Call] = [
                partial(monitor.log, number, 0.1, epoch(number)),
                partial(monitor.log_steps, one),
                partial(monitor.log_steps, many),
            ]
            for name, call in zip(taken, hand_overs, strict=True):
                took = seconds_of(call)
                if number:
                    taken[name].append(took)
            time.sleep(0.01)  # hand-overs come at a distance: the next finds the queue empty
        monitor.finish()
    return taken


def lightning_log(rounds: int, steps: int) -> list[float]:
    """Seconds that ``self.log`` and what hangs on it add to a step: defaults less all off."""
    device = torch.device("cpu")
    task = Task(name="tiny", width=16, hidden=16, batch=4, steps=steps, device=device)
    added = []
    with quiet():
        for number in range(rounds + 1):
            per_step = [
                (lightning(task, bare, 2) - lightning(task, bare, 1)) / steps
                for bare in (False, True)
            ]
            if number:
                added.append(per_step[0] - per_step[1])
    return added


def watched_steps(rounds: int) -> dict[str, list[float]]:
    """Seconds of a hundred steps whose values go to readers of various kinds."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(64, 64)
    monitors = {
        "nobody": None,
        "no sink": Monitor(10**6),
        "slow sink": Monitor(10**6),
        "dead sink": Monitor(10**6),
    }
    count = 0

    def steps(monitor: Monitor | None) -> None:
        nonlocal count
        losses = []
        for _ in range(100):
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if monitor is not None:
            monitor.log_steps([StepSeries("loss", list(range(count, count + 100)), losses)])
        count += 100

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name, sink in (("slow sink", SlowSink()), ("dead sink", DeadSink())):
            monitor = monitors[name]
            assert monitor is not None
            monitor.add_sink(sink)
        subjects = {name: partial(steps, each) for name, each in monitors.items()}
        seconds = interleaved(subjects, rounds)
        for each in monitors.values():
            if each is not None:
                each.finish(timeout=1.0)
    return seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("log_cost", __doc__, rounds=60)
    parser.add_argument("--lightning-rounds", type=int, default=5, help="0 leaves Lightning out")
    options = read_options(parser, argv, rounds=1, lightning_rounds=0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls = {**record_calls(options.rounds), **monitor_calls(options.rounds)}
    if options.lightning_rounds and find_spec("pytorch_lightning") is not None:
        calls["Lightning self.log, with its defaults"] = lightning_log(
            options.lightning_rounds, steps=500
        )
    watched = watched_steps(options.rounds)
    rows = [
        [
            name,
            middle(values, ".2f", 1e6),
            spread(values, ".2f", 1e6),
            BARS[name].verdict(statistics.median(values) * 1e6) if name in BARS else "",
        ]
        for name, values in calls.items()
    ]
    readers = [
        [
            name,
            middle(values, ".1f", 1e4),
            f"{ratio:.3f}",
            spread(ratios(values, watched["nobody"]), ".3f"),
            WATCHED.verdict(ratio) if name in ("slow sink", "dead sink") else "",
        ]
        for name, values in watched.items()
        for ratio in [median_ratio(values, watched["nobody"])]
    ]
    text = page(
        options,
        "Cost of logging",
        f"{options.rounds} rounds, medians and the middle 80 %. Time that the call takes from the "
        "training thread; the monitor's own threads are not counted. Lightning's figure is the "
        "time per step that its defaults add to a training with everything off.",
        table(["call", "µs", "spread", "bar"], rows),
        "Time of a step of a small perceptron. Its losses go to a monitor every hundred steps. "
        "The monitor has no reader, a reader that takes half a second, or one that raises:",
        table(["reader", "µs per step", "/ nobody", "spread", "bar"], readers),
        packages=("torch", "pytorch-lightning", "tensorboard"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
