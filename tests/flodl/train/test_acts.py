"""A training that is told what to do while it runs."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from fdl.base.errors import FdlError
from fdl.runs.diff import compare
from fdl.runs.follow import parse, tell
from fdl.runs.run import Run, read
from flodl.nn.schedule import StepDecay
from flodl.train import Callback, RunDirectory, TrainerBuilder
from flodl.train.observers import requests, steering
from flodl.train.observers.journal import Act, Journal
from flodl.train.observers.requests import Mailbox, Wish
from flodl.train.step.learning_rate import SteeredRate
from flodl.train.step.torch_schedule import SchedulerSettings, TorchSchedule
from tests import fork_server
from tests.waiting import wait_for

from .programs import squared_error, training

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")

PROGRAM = dedent(
    """
    import sys, time
    from flodl.nn.schedule import StepDecay
    from flodl.train import Callback, RunDirectory, entry
    from tests.flodl.train.programs import squared_error, training

    class Rates(Callback):
        def on_step_end(self, run):
            lr = run.optimizer.param_groups[0]["lr"]
            with open("rates", "a") as file:
                print(run.global_step, lr, file=file)

    def train_fn(model, batch):
        time.sleep(0.002)
        return squared_error(model, batch)

    def main(options):
        resume, epochs = options[0] or None, int(options[1])
        with RunDirectory.create("runs", resume=resume) as run:
            print("ready", flush=True)
            (
                training(train_fn, epochs=epochs).run_dir(run).callbacks(Rates())
                .scheduler(lambda _: StepDecay(0.1, 10**9, 0.5))
                .live_setting("beta", 1.0, on_change=lambda beta: print("beta", beta, flush=True))
                .run()
            )

    sys.exit(entry(main, sys.argv[1:]))
    """
)


class Terminal:
    """Starts the program, and types fdl commands in the same folder."""

    def __init__(self, folder: Path, private: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._env = {**os.environ, "FLODL_VERBOSITY": "quiet", "TMPDIR": str(private)}
        self._env.pop("XDG_RUNTIME_DIR", None)

    def train(self, resume: str = "", epochs: int = 1_000_000) -> Any:
        child = fork_server.start(
            *("-c", PROGRAM, resume, str(epochs)),
            torch=True,
            cwd=self._folder,
            env=self._env | PATHS,
            abrupt=True,
        )
        self._stack.enter_context(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        return child

    def fdl(self, *words: str) -> Any:
        typed = ("-m", "fdl", "runs", *words)
        return fork_server.python(*typed, cwd=self._folder, env=self._env, abrupt=True)


PATHS = {"PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the sockets of the test; paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="flodl-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def terminal(tmp_path: Path, private: Path) -> Iterator[Terminal]:
    with ExitStack() as stack:
        yield Terminal(tmp_path, private, stack)


@posix_only
def test_a_training_is_told_what_to_do_and_a_resumed_one_goes_on(
    terminal: Terminal, private: Path, tmp_path: Path
) -> None:
    child = terminal.train()
    run = wait_for(lambda: next(tmp_path.glob("runs/*/run.json"), None)).parent
    wait_for(lambda: "socket" in json.loads((run / "run.json").read_text()))
    told = terminal.fdl("tell", "last", "lr=0.01", "--json")
    assert (told.returncode, told.stderr) == (0, "")
    answer = json.loads(told.stdout)
    assert (answer["act"], answer["value"], answer["old"]) == ("lr", 0.01, 0.1)
    changed = answer["step"]
    assert "beta is 2.0 from step" in terminal.fdl("tell", "last", "set", "beta=2").stdout
    assert child.stdout.readline() == "beta 2.0\n"
    wait_for((run / "last.fdl").exists)
    paused = terminal.fdl("tell", "last", "pause")
    step = int(paused.stdout.rsplit(" ", 1)[1])
    assert paused.stdout == f"runs/{run.name}: paused after step {step}\n"
    (run / "last.fdl").unlink()
    saving = terminal.fdl("tell", "last", "checkpoint")
    assert saving.stdout.endswith(f"saving a checkpoint of step {step}\n")
    wait_for((run / "last.fdl").exists)
    assert f"continues with step {step + 1}" in terminal.fdl("tell", "last", "continue").stdout
    for word, message in (
        (["continue"], "the training is not paused"),
        (["set", "beta=x"], "beta='x': it must be a number"),
        (["lr=-1"], "it must be a number greater than 0"),
    ):
        with pytest.raises(FdlError, match=message):
            tell(_run(run), parse(word), 20)
    refused = terminal.fdl("tell", "last", "set", "gamma=2")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "'gamma' is not a live setting of this program; declared: beta" in refused.stderr
    stopped = terminal.fdl("tell", "last", "stop")
    assert "stops after step" in stopped.stdout
    assert child.wait(30) == 130
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    gone = terminal.fdl("tell", "last", "stop")
    assert (gone.returncode, "is interrupted, so it takes no acts" in gone.stderr) == (1, True)
    assert not list(private.glob("flodl-*/*"))

    acts = Journal.read(run / "acts.jsonl")
    names = ["lr", "set", "pause", "checkpoint", "continue", "stop"]
    assert [act.act for act in acts] == names
    assert all(act.by and act.time for act in acts)
    rates = dict(line.split() for line in (tmp_path / "rates").read_text().splitlines())
    assert {float(rates[str(n)]) for n in range(1, changed + 1)} == {0.1}
    last = acts[-1].step
    after = [float(rates[str(n)]) for n in range(changed + 1, last + 1)]
    assert after == pytest.approx([0.01] * (last - changed))

    (tmp_path / "rates").unlink()
    resumed = terminal.train("last", epochs=acts[-1].step // 3 + 3)
    assert resumed.communicate()[0] == "beta 2.0\n"
    assert resumed.returncode == 0
    lines = (tmp_path / "rates").read_text().splitlines()
    assert lines[0].split()[0] == str(last + 1)
    assert [float(line.split()[1]) for line in lines] == pytest.approx([0.01] * len(lines))
    [again] = (one for one in tmp_path.glob("runs/*/acts.jsonl") if one.parent != run)
    assert [(act.act, act.step, act.old) for act in Journal.read(again)] == [
        ("lr", changed, 0.1),
        ("set", acts[1].step, 1.0),
    ]
    assert Journal.read(again)[0].detail == f"replayed from {run.name}"


class Telling(Callback):
    """Tells its own training something after a step, from another thread, as fdl does."""

    def __init__(
        self, run: RunDirectory, acts: dict[int, tuple[str, ...]], posted: threading.Event
    ) -> None:
        self._folder, self._acts, self._posted = run.path, acts, posted
        self.rates: list[float] = []
        self.answers: list[dict[str, Any] | str] = []
        self._threads: list[threading.Thread] = []

    def on_step_end(self, run: Any) -> None:
        self.rates.append(float(run.optimizer.param_groups[0]["lr"]))
        words = self._acts.get(run.global_step)
        if words is not None:
            thread = threading.Thread(target=self._tell, args=(words,))
            self._threads.append(thread)
            self._posted.clear()
            thread.start()
            # The training takes the letter after this step; a refusal may leave none.
            wait_for(lambda: self._posted.is_set() or not thread.is_alive())

    def _tell(self, words: tuple[str, ...]) -> None:
        try:
            self.answers.append(tell(_run(self._folder), parse(words), 20))
        except FdlError as refused:
            self.answers.append(refused.message)

    def on_train_end(self, _run: Any) -> None:
        for thread in self._threads:
            thread.join()


@contextmanager
def telling(run: RunDirectory, acts: dict[int, tuple[str, ...]]) -> Iterator[Telling]:
    """A callback that tells a training something, and knows when the training has the letter."""
    posted, post = threading.Event(), Mailbox.post

    def posting(mailbox: Mailbox, wish: Wish, reply: Callable[[Any], object]) -> None:
        post(mailbox, wish, reply)
        posted.set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mailbox, "post", posting)
        yield Telling(run, acts, posted)


def _run(folder: Path) -> Run:
    found = read(folder)
    assert found is not None
    return found


def told(
    folder: Path, acts: dict[int, tuple[str, ...]], more: Callable[[TrainerBuilder], Any]
) -> Telling:
    with RunDirectory.create(folder) as run, telling(run, acts) as tells:
        built = training(epochs=4).run_dir(run).callbacks(tells)
        more(built)
        built.run()
    return tells


@posix_only
@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("kind", ["none", "schedule", "torch by step", "torch by epoch"])
def test_a_rate_scales_the_schedule_which_goes_on_in_its_shape(tmp_path: Path, kind: str) -> None:
    def rated(builder: TrainerBuilder) -> None:
        if kind == "schedule":
            builder.scheduler(lambda _: StepDecay(0.05, 4, 0.5))
        elif kind == "torch by step":
            builder.lr_scheduler(lambda o: lr_scheduler.CosineAnnealingLR(o, 12), "step")
        elif kind == "torch by epoch":
            builder.lr_scheduler(lambda o: lr_scheduler.StepLR(o, 1, 0.5))

    plain = told(tmp_path / "a", {}, rated).rates
    seen = told(tmp_path / "b", {5: ("lr=0.007",)}, rated)
    [answer] = seen.answers
    assert isinstance(answer, dict), answer
    assert answer["step"] == 5
    assert seen.rates[:5] == plain[:5]
    # After a step, a scheduler by step has already set the rate of the next one.
    base = plain[4 if kind == "torch by step" else 5]
    assert seen.rates[5:] == pytest.approx([rate / base * 0.007 for rate in plain[5:]])


@posix_only
@pytest.mark.usefixtures("private")
def test_a_scheduler_of_torch_keeps_a_told_rate_over_a_checkpoint() -> None:
    def rates(parts: int) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        settings = SchedulerSettings(
            lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20), "step"
        )
        schedule = TorchSchedule(settings, optimizer, steps=20, epochs=1)
        seen = []
        for step in range(18):
            if step == 5:
                schedule.ask_for(0.02)
            if step == parts:
                saved = json.loads(json.dumps(schedule.asked())), schedule.state_dict()
                state = optimizer.state_dict()
                schedule = TorchSchedule(settings, optimizer, steps=20, epochs=1)
                optimizer.load_state_dict(state)
                schedule.load_state_dict(saved[1])
                schedule.restore_asked(saved[0])
            seen.append(float(optimizer.param_groups[0]["lr"]))
            optimizer._opt_called = True  # type: ignore[attr-defined]
            schedule.end_step()
        return seen

    assert rates(9) == rates(-1)
    assert rates(-1)[5] == 0.02


@posix_only
@pytest.mark.usefixtures("private")
def test_a_diff_names_the_act_that_parted_two_runs(tmp_path: Path) -> None:
    told(tmp_path / "a", {}, lambda _: None)
    told(tmp_path / "b", {5: ("lr=0.007",)}, lambda _: None)
    told(tmp_path / "c", {5: ("checkpoint",), 10: ("lr=0.007",)}, lambda _: None)
    runs = [_run(next((tmp_path / name).iterdir())) for name in "abc"]
    verdict = compare(runs[0], runs[1])
    assert verdict.difference is not None
    assert verdict.difference.step in (6, 7)
    assert verdict.certain is not None
    user = verdict.certain.right_origin
    assert user.startswith("acts.jsonl, by ")
    assert verdict.certain.sentence() == (
        f"while it trained, after step 5: absent against lr 0.05 -> 0.007 ({user})"
    )
    later = compare(runs[1], runs[2])
    assert later.certain is not None
    assert later.certain.left == "lr 0.05 -> 0.007"
    assert later.certain.right is None, "a checkpoint changes nothing"


def test_a_schedule_at_zero_cannot_be_scaled() -> None:
    rate = SteeredRate(StepDecay(0.0, 1, 0.5))
    with pytest.raises(ValueError, match="at a rate of 0 now"):
        rate.ask_for(0.1, 0)


@posix_only
@pytest.mark.usefixtures("private")
def test_a_training_that_nobody_tells_anything_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(root: str) -> list[bytes]:
        with RunDirectory.create(tmp_path / root) as run:
            handle = training().run_dir(run).run()
        assert not (run.path / "acts.jsonl").exists()
        return [p.numpy().tobytes() for p in handle.join().params]

    def refuse(*_: object) -> None:
        raise OSError("no socket")

    listening = weights("a")
    monkeypatch.setattr(steering, "PrivateSocket", refuse)
    assert weights("b") == listening


@posix_only
@pytest.mark.usefixtures("private")
def test_acts_after_the_checkpoint_are_told_and_not_carried_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunDirectory.create(tmp_path / "runs") as run:
        training().run_dir(run).run()
    journal = Journal(run.path / "acts.jsonl")
    for act in (Act.now(6, "lr", value=0.3), Act.now(7, "lr", value=0.5), Act.now(9, "stop")):
        journal.record(act)
    with RunDirectory.create(tmp_path / "runs", resume=run.path) as again:
        training(epochs=3).run_dir(again).run()
    said = capsys.readouterr().err
    what = "lr=0.3 after step 6, lr=0.5 after step 7"
    assert f"{what}; they are not carried out again" in said
    assert f"fdl runs tell {again.path.name} lr=0.5" in said
    assert [(a.act, a.step) for a in Journal.read(again.path / "acts.jsonl")] == [
        ("resume", 6),
    ]


# --- Who may act -----------------------------------------------------------------------------


@posix_only
def test_the_socket_belongs_to_its_user_alone(tmp_path: Path, private: Path) -> None:
    modes: list[int] = []

    class Look(Callback):
        def on_train_start(self, _run: Any) -> None:
            [path] = (private / "flodl").iterdir()
            modes.extend(stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path))

    with RunDirectory.create(tmp_path / "runs") as run:
        training().run_dir(run).callbacks(Look()).run()
    assert modes == [0o700, 0o600]
    assert not list((private / "flodl").iterdir())


@posix_only
def test_the_next_training_removes_the_socket_of_a_killed_one(
    terminal: Terminal, private: Path
) -> None:
    folder = private / f"flodl-{os.geteuid()}"
    killed = terminal.train()
    [left] = wait_for(lambda: list(folder.glob("*.sock")))
    killed.kill()
    killed.wait()
    terminal.train()
    [heard] = wait_for(lambda: set(folder.glob("*.sock")) - {left})
    terminal.train()
    wait_for(lambda: len(set(folder.glob("*.sock")) - {left}) == 2)
    assert heard.exists()
    assert not left.exists()


@posix_only
def test_a_folder_that_others_can_use_is_not_taken(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (private / "flodl", tmp_path / "temp" / f"flodl-{os.geteuid()}"):
        place.mkdir(parents=True)
        place.chmod(0o755)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temp"))
    with RunDirectory.create(tmp_path / "runs") as run:
        training().run_dir(run).run()
    record = json.loads((run.path / "run.json").read_text())
    assert (record["state"], "socket" in record) == ("complete", False)


@posix_only
def test_another_user_is_refused_on_both_sides(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        pytest.skip("this system does not tell the user of a connection")
    answers: list[str] = []

    class Strange(Callback):
        def on_train_start(self, _run: Any) -> None:
            monkeypatch.setattr(requests, "peer", lambda _: os.geteuid() + 1)
            self._tell()
            monkeypatch.undo()
            monkeypatch.setattr("fdl.runs.follow.peer", lambda _: os.geteuid() + 1)
            self._tell()
            monkeypatch.undo()
            (private / "flodl").chmod(0o755)
            self._tell()

        def _tell(self) -> None:
            with pytest.raises(FdlError) as refused:
                tell(_run(run.path), parse(["stop"]), 10)
            answers.append(refused.value.message)

    with RunDirectory.create(tmp_path / "runs") as run:
        training().run_dir(run).callbacks(Strange()).run()
    assert "only the user who started the training can act on it" in answers[0]
    assert all("belongs to another user" in one for one in answers[1:])
    assert Journal.read(run.path / "acts.jsonl") == []


@posix_only
@pytest.mark.usefixtures("private")
def test_a_guard_that_goes_back_keeps_a_told_rate(tmp_path: Path) -> None:
    calls = 0

    def spoiled_once(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return squared_error(model, batch) * (float("nan") if calls == 8 else 1.0)

    with RunDirectory.create(tmp_path) as run, telling(run, {5: ("lr=0.007",)}) as tells:
        built = training(spoiled_once, n=60, epochs=1).run_dir(run).callbacks(tells)
        built.guards(every=1000, lower_lr=1).run()
    assert isinstance(tells.answers[0], dict), tells.answers
    kinds = [act.act for act in Journal.read(run.path / "acts.jsonl")]
    assert kinds == ["lr", "rewind", "skip"]
    assert tells.rates[5:] == [0.007] * len(tells.rates[5:])
    assert tells.rates[5:]
