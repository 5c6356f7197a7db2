"""Ctrl-C as a user presses it: a real signal to a real program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch

from flodl import Callback
from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.ranks.launch import interrupt
from flodl.ranks.launch.interrupt import InterruptRequest, Terminated
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.callbacks import TrainingRun
from flodl.train.observers import reporting
from tests import fork_server
from tests.waiting import wait_for

from .programs import line, network, training

Child = fork_server.Forked | subprocess.Popen[str]
Start = Callable[..., Child]

posix_only = pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a child process")

PROGRAM = dedent(
    """
    import sys, time
    from pathlib import Path
    from flodl.train import RunDirectory, entry
    from tests.flodl.train.programs import squared_error, training

    calls = 0

    def train_fn(model, batch):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            print("ready", flush=True)
            while not Path(sys.argv[3], "go on").exists():
                Path(sys.argv[3], "in the step").touch()
                time.sleep(0.01)
        return squared_error(model, batch)

    def main(root):
        with RunDirectory.create(root) as run:
            training(train_fn, epochs=1_000_000).run_dir(run).run()

    sys.exit(entry(main, Path(sys.argv[1])))
    """
)

LONG_AT_ONCE = PROGRAM.replace(
    "calls = 0\n",
    "from flodl.ranks.launch import interrupt\ninterrupt._SAME_WITHIN_S = 60.0\ncalls = 0\n",
)
"""Signals count as the same request, however long a busy machine takes between them."""


@pytest.fixture
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the training and its test meet during a step."""
    return tmp_path_factory.mktemp("step")


def go_on(step: Path) -> None:
    """Let the training leave its step."""
    (step / "go on").touch()


def stays(child: Child, step: Path) -> None:
    """Wait until the training has seen every signal sent so far; it is in the step still."""
    (step / "in the step").unlink(missing_ok=True)
    limit = time.monotonic() + 60
    while not (step / "in the step").exists():
        assert child.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path, step: Path) -> Iterator[Start]:
    """Starts a training that says "ready" in its call-th step and then waits in it."""
    with ExitStack() as children:

        def begin(call: int, program: str = PROGRAM, abrupt: bool = True) -> Child:
            child = fork_server.start(
                *("-c", program, str(tmp_path), str(call), str(step)),
                torch=True,
                cwd=Path(__file__).parents[3],
                env={**os.environ, "FLODL_VERBOSITY": "quiet"},
                abrupt=abrupt,
            )
            children.enter_context(child)
            children.callback(child.kill)
            assert child.stdout is not None
            said = child.stdout.readline()
            if said != "ready\n":
                child.kill()
                pytest.fail(f"the program said {said!r} and {child.communicate()[1]!r}")
            return child

        yield begin


@posix_only
def test_ctrl_c_saves_at_the_next_step_and_exits_130(
    start: Start, tmp_path: Path, step: Path
) -> None:
    child = start(call=8, abrupt=False)
    child.send_signal(signal.SIGINT)
    go_on(step)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 130
    (run,) = tmp_path.iterdir()
    assert said == (
        "interrupted: stopped after 2 complete epochs and 2 steps; the last good checkpoint is "
        f"{run / 'last.fdl'} (after 2 complete epochs and 2 steps)\n"
    )
    model = network()
    report = load_checkpoint_file(run / "last.fdl", model.named_parameters(), model.named_buffers())
    assert report.missing == []
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    facts = checkpoint_metadata(run / "last.fdl")
    assert (facts["epoch"], facts["step"]) == ("2", "2")
    assert not (run / "model.fdl").exists()
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("interrupted", 2)
    assert record["error"].startswith("KeyboardInterrupt: stopped after 2 complete epochs")
    closing = (run / "training.log").read_text().splitlines()[-1]
    assert closing.startswith("interrupted after 2 epochs in ")


@posix_only
def test_a_second_ctrl_c_stops_in_the_middle_of_a_step(
    start: Start, tmp_path: Path, step: Path
) -> None:
    child = start(call=5)
    child.send_signal(signal.SIGINT)
    stays(child, step)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 130
    assert said == "interrupted\n"
    (run,) = tmp_path.iterdir()
    assert checkpoint_metadata(run / "last.fdl")["epoch"] == "1"
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("interrupted", 1)


@posix_only
def test_a_request_to_terminate_saves_at_the_next_step_and_exits_143(
    start: Start, tmp_path: Path, step: Path
) -> None:
    child = start(call=8)
    child.send_signal(signal.SIGTERM)
    go_on(step)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 143
    (run,) = tmp_path.iterdir()
    assert said == (
        "terminated: stopped after 2 complete epochs and 2 steps; the last good checkpoint is "
        f"{run / 'last.fdl'} (after 2 complete epochs and 2 steps)\n"
    )
    facts = checkpoint_metadata(run / "last.fdl")
    assert (facts["epoch"], facts["step"]) == ("2", "2")
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("interrupted", 2)
    assert record["error"].startswith("Terminated: stopped after 2 complete epochs")


@posix_only
@pytest.mark.parametrize(
    ("first", "second", "code", "said"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143, "terminated\n"),
        pytest.param(signal.SIGTERM, signal.SIGINT, 130, "interrupted\n", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, signal.SIGTERM, 143, "terminated\n", marks=pytest.mark.slow),
    ],
)
def test_the_second_signal_acts_at_once_whichever_it_is(
    start: Start,
    tmp_path: Path,
    step: Path,
    first: signal.Signals,
    second: signal.Signals,
    code: int,
    said: str,
) -> None:
    child = start(call=5)
    child.send_signal(first)
    stays(child, step)
    child.send_signal(second)
    _, printed = child.communicate(timeout=60)
    assert (child.returncode, printed) == (code, said)
    (run,) = tmp_path.iterdir()
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("interrupted", 1)


@posix_only
@pytest.mark.slow
def test_without_entry_a_request_to_terminate_ends_the_program_quietly(
    start: Start, step: Path
) -> None:
    program = PROGRAM.replace("sys.exit(entry(main, Path(sys.argv[1])))", "main(sys.argv[1])")
    child = start(call=5, program=program)
    child.send_signal(signal.SIGTERM)
    go_on(step)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (143, "")


class Lines(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The line as a data set of the user; at a certain read, all processes get SIGTERM.

    Not before a file is there.
    """

    def __init__(self, ends_at: int, file: Path) -> None:
        self._points, self._left, self._file = line(), ends_at, file

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self._left -= 1
        if not self._left:
            wait_for(self._file.exists)
            for process in (os.getppid(), os.getpid()):
                os.kill(process, signal.SIGTERM)
        x, y = self._points.tensors
        return {"x": x[index], "y": y[index]}


class InSecondEpoch(Callback):
    """Makes a file after the first step of the second epoch."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_step_end(self, run: TrainingRun) -> None:
        if run.global_step == 4:
            self._file.touch()


@posix_only
def test_a_signal_to_the_processes_of_the_loader_too_saves_at_the_last_step(
    tmp_path: Path, step: Path
) -> None:
    file = step / "done"

    def begin(ends_at: int = 0) -> TrainerBuilder:
        lines = Lines(ends_at, file)
        return (
            training(epochs=3).dataset(lines).loader_options(workers=1)
            .callbacks(InSecondEpoch(file))
        )  # fmt: skip

    whole = begin().run()
    file.unlink()
    run = RunDirectory.create(tmp_path)
    with pytest.raises(Terminated):
        begin(ends_at=15).run_dir(run).run()
    assert json.loads((run.path / "run.json").read_text())["state"] == "interrupted"
    assert int(checkpoint_metadata(run.last_checkpoint)["step"]) > 0, "inside an epoch"
    resumed = begin().resume(run.path).run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_a_program_with_a_handler_for_sigterm_keeps_it() -> None:
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        training(epochs=1).epoch_fn(lambda *_: signal.raise_signal(signal.SIGTERM)).run()
        assert asked == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_handler_of_the_program_is_back_after_training() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []
    training().metrics_fn(lambda _: seen.append(signal.getsignal(signal.SIGINT))).run()
    assert seen[0] != before
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    with pytest.raises(ZeroDivisionError):
        training(lambda *_: 1 / 0).run()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_training_in_another_thread_leaves_the_signal_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    epochs: list[int] = []
    handlers: list[object] = []

    def work() -> None:
        handle = (
            training().epoch_fn(lambda *_: handlers.append(signal.getsignal(signal.SIGINT))).run()
        )
        epochs.extend(metrics.epoch for metrics in handle.poll_metrics())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert epochs == [0, 1]
    assert handlers == [before, before]


def test_a_program_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptRequest() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


REPEATED = dedent(
    """
    import signal, sys
    from flodl.ranks.launch import interrupt
    from flodl.train import Callback, RunDirectory, entry
    from tests.flodl.train.programs import training

    interrupt._SAME_WITHIN_S = float(sys.argv[2])
    places = sys.argv[3:]

    def repeat(place):
        if place in places:
            signal.raise_signal(signal.SIGINT)

    class Stops(Callback):
        def on_step_end(self, run):
            if run.global_step == 2:
                signal.raise_signal(signal.SIGINT)

        def on_exception(self, run, error):
            repeat("callback")

    def main(root):
        try:
            with RunDirectory.create(root, config={"resume": None}) as run:
                training().run_dir(run).callbacks(Stops()).run()
        finally:
            repeat("program")

    code = entry(main, sys.argv[1])
    repeat("end")
    sys.exit(code)
    """
)


@posix_only
@pytest.mark.parametrize(
    ("within", "places"),
    [
        ("60", ("callback", "program", "end")),
        # Those that come later act at once, and the first one still says how to continue.
        ("0", ("callback",)),
        ("0", ("program",)),
        ("0", ("callback", "program")),
    ],
)
def test_a_repeated_ctrl_c_never_costs_the_command_that_continues(
    within: str, places: tuple[str, ...], tmp_path: Path
) -> None:
    plan = '{"kind":"entry","command":["train"],"argv":["main.py"],"typed":0}'
    done = fork_server.python(
        *("-c", REPEATED, str(tmp_path), within, *places),
        cwd=Path(__file__).parents[3],
        env={**os.environ, "FLODL_VERBOSITY": "quiet", "FDL_PLAN": plan},
        torch=True,
        abrupt=True,
    )
    stopped, command = done.stderr.splitlines()
    assert stopped.startswith("interrupted: stopped after 0 complete epochs and 2 steps; the last")
    assert command == "continue with: fdl train --resume last"
    assert done.returncode == 130
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"


def test_the_handler_of_the_program_is_back_a_moment_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: got.append(number))
    own = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt), InterruptRequest() as request:
            _be_stopped(request)
        signal.raise_signal(signal.SIGINT)
        assert got == []
        monkeypatch.setattr(interrupt, "_SAME_WITHIN_S", 0.0)
        interrupt.ignore_repeated()
        signal.raise_signal(signal.SIGINT)
        assert got == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def _be_stopped(request: InterruptRequest) -> None:
    signal.raise_signal(signal.SIGINT)
    request.stop("stopped")


class _Interrupted:
    """Stands for the work of a function at exit; Ctrl-C arrives in the middle of it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def interrupted(self, *_: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        self.done.append("all")
        return False


def test_ctrl_c_does_not_end_a_function_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    before, work = signal.getsignal(signal.SIGINT), _Interrupted()
    ledger = SimpleNamespace(lap=work.interrupted, seconds=dict)
    monitor = SimpleNamespace(amend_ledger=work.interrupted)
    monkeypatch.setattr(reporting, "_ended", (os.getpid(), ledger, monitor))
    reporting._book_shutdown()
    assert work.done == ["all"] * 2
    assert signal.getsignal(signal.SIGINT) is before


@posix_only
def test_the_notice_of_a_batch_system_saves_at_the_next_step_and_exits_138(
    start: Start, tmp_path: Path, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    child = start(call=8, program=LONG_AT_ONCE)
    # The batch system signals every process, and the launcher passes the signal on.
    child.send_signal(signal.SIGUSR1)
    # Of signals that wait at the same time, a thread may take the later one first.
    stays(child, step)
    child.send_signal(signal.SIGUSR1)
    child.send_signal(signal.SIGTERM)
    go_on(step)
    _, said = child.communicate(timeout=60)

    (run,) = tmp_path.iterdir()
    assert (child.returncode, said.partition(":")[0]) == (128 + signal.SIGUSR1, "preempted")
    facts = checkpoint_metadata(run / "last.fdl")
    assert (facts["epoch"], facts["step"]) == ("2", "2")
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["job"]) == ("interrupted", "slurm-7")


@posix_only
def test_what_a_launcher_passes_on_once_more_costs_no_checkpoint(
    start: Start, tmp_path: Path, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    child = start(call=8, program=LONG_AT_ONCE)
    # torch's launcher sends SIGTERM as well, if a second SIGINT reaches it.
    child.send_signal(signal.SIGINT)
    stays(child, step)
    child.send_signal(signal.SIGTERM)
    go_on(step)
    _, said = child.communicate(timeout=60)

    (run,) = tmp_path.iterdir()
    assert (child.returncode, said.partition(":")[0]) == (130, "interrupted")
    facts = checkpoint_metadata(run / "last.fdl")
    assert (facts["epoch"], facts["step"]) == ("2", "2")


@posix_only
def test_outside_a_batch_job_the_notice_ends_the_program_as_before(start: Start) -> None:
    child = start(call=8)
    child.send_signal(signal.SIGUSR1)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGUSR1


PREEMPTED = dedent(
    """
    import signal, sys
    import torch
    from flodl.train import RunDirectory, entry
    from tests.flodl.train.programs import squared_error, training

    calls = 0

    def train_fn(model, batch):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            signal.raise_signal(signal.SIGUSR1)
        return squared_error(model, batch)

    def main(root):
        torch.manual_seed(3)
        with RunDirectory.create(root, config={"lr": 0.05}) as run:
            model = training(train_fn, epochs=5).seed(3).run_dir(run).run().model
        torch.save(model.state_dict(), run.path / "weights.pt")

    sys.exit(entry(main, sys.argv[1]))
    """
)


@posix_only
@pytest.mark.slow
def test_a_job_that_is_preempted_twice_ends_with_the_weights_of_an_uninterrupted_run(
    tmp_path: Path,
) -> None:
    def attempt(root: Path, stop_in_step: int, job: str, restarts: str) -> int:
        child = fork_server.start(
            *("-c", PREEMPTED, str(root), str(stop_in_step)),
            torch=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": restarts},
        )
        with child:
            child.communicate(timeout=60)
        return child.returncode

    jobs, alone = tmp_path / "jobs", tmp_path / "alone"
    preempted = 128 + signal.SIGUSR1
    assert [attempt(jobs, 5, "7", "0"), attempt(jobs, 4, "7", "1")] == [preempted, preempted]
    # Another job that is queued again begins its own run.
    assert attempt(jobs, 2, "8", "1") == preempted
    assert attempt(jobs, 0, "7", "2") == 0
    assert attempt(alone, 0, "9", "0") == 0

    assert len(list(jobs.iterdir())) == 2
    (continued,) = jobs.glob("*/weights.pt")
    (expected,) = alone.glob("*/weights.pt")
    record = json.loads((continued.parent / "run.json").read_text())
    assert (record["state"], record["restarts"], record["epochs"]) == ("complete", 2, 5)
    found, wanted = torch.load(continued), torch.load(expected)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())
