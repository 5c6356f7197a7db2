"""What an engine has decided is used again, and by whom; what it checks before it uses anything."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.train import Callback, RunDirectory
from flodl.train.step import AutoEngine, AutoPolicy, StepSettings
from flodl.train.step.decision import Decision, decision_key
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import ThreadLimit, Tuning
from tests.flodl.train.programs import training

QUICK = AutoPolicy(
    least_steps=1, least_seconds=0.0, cost=1e9, gain=-1e9, block=1, only=frozenset({"fused"})
)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def other_loss(model: nn.Module, batch: Batch) -> Tensor:
    return loss_fn(model, batch) * 2


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def batches(count: int, rows: int = 6) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    return [
        Batch((torch.randn(rows, 8, generator=draw), torch.ones(rows, 4)), ("x", "y"))
        for _ in range(count)
    ]


def auto(train_fn: Any = loss_fn, *, steps: int = 10**6, **more: Any) -> AutoEngine:
    model = mlp()
    settings = StepSettings(train_fn=train_fn)
    return AutoEngine(model, adam(model), settings, total_steps=steps, policy=QUICK, **more)


def train(engine: TunedEngine, count: int, rows: int = 6) -> TunedEngine:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in batches(count, rows):
        engine.step(batch, losses)
    return engine


@pytest.fixture
def decided() -> AutoEngine:
    """An engine that has just decided for the fused optimizer."""
    engine = auto()
    train(engine, 80)
    assert engine.report()["source"] == "measured"
    assert engine.report()["tuning"] == ["fused optimizer"]
    return engine


def test_a_later_run_of_the_program_uses_the_decision_from_its_first_step(decided):
    assert decided.decided
    again = auto(steps=3)  # too short to find out anything itself
    train(again, 1)
    assert again.decided
    assert again.tuning == Tuning(fused=True)
    assert again.report()["source"] == "cache"
    assert again.report()["trials"] == decided.report()["trials"]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2)


def key(
    train_fn: Any = loss_fn,
    make: Any = mlp,
    optimizer: Any = adam,
    rows: int = 6,
    options: str = "",
) -> dict[str, str]:
    settings = StepSettings(train_fn=train_fn)
    return decision_key(model := make(), optimizer(model), settings, batches(1, rows)[0], options)


def test_another_program_model_batch_or_number_of_threads_decides_for_itself():
    keys = [
        key(),
        key(other_loss),
        key(rows=7),
        key(optimizer=sgd),
        key(options="pure"),
        key(make=lambda: nn.Sequential(nn.Linear(8, 17), nn.GELU(), nn.Linear(17, 4))),
        key(make=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))),
        key(make=lambda: mlp().double()),
    ]
    assert key() == keys[0]
    assert len({json.dumps(one) for one in keys}) == len(keys)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert key() not in keys
    finally:
        torch.set_num_threads(before)


def test_a_decision_of_a_checkpoint_holds_for_the_last_smaller_batch_too():
    decision = Decision(key=key(), tuning=Tuning())
    assert decision.suits(key(rows=2))
    assert not decision.suits(key(other_loss))


def test_a_declared_step_is_tried_again_although_an_undeclared_one_was_decided(decided):
    assert decided.decided
    declared = train(auto(pure=True), 1)
    assert declared.report()["source"] == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{broken",
        "[]",
        "{}",
        '{"decisions": 1}',
        '{"decisions": [1, {}]}',
        '{"decisions": [{"key": KEY, "tuning": {"fused": true}, REST}]}',
        '{"decisions": [{"key": KEY, "tuning": TUNING}]}',
        '{"decisions": [{"key": "other", "tuning": TUNING, REST}]}',
        '{"decisions": [{"key": {}, "tuning": TUNING, REST}]}',
        '{"decisions": [{"key": KEY, "tuning": TUNING, REST, "at_most": null}]}',
    ],
)
@pytest.mark.usefixtures("decided")
def test_a_broken_or_foreign_decision_is_ignored(text):
    path = Path(os.environ["FLODL_CACHE_DIR"]) / "engine.json"
    [known] = json.loads(path.read_text())["decisions"]
    text = text.replace("REST", '"plain_ms": 1, "step_ms": 1, "trials": {}, "at_most": 0')
    for name in ("tuning", "key"):
        text = text.replace(name.upper(), json.dumps(known[name]))
    path.write_text(text)
    again = auto()
    train(again, 1)
    assert again.report()["source"] == ""
    assert not again.decided


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLODL_CACHE_DIR", str(tmp_path / "file"))
    assert train(auto(), 80).report()["source"] == "measured"


def test_a_decision_survives_json_and_a_checkpoint_of_another_program_is_ignored(decided):
    form = json.loads(json.dumps(decided.decision()))
    assert Decision.from_json(form).tuning == Tuning(fused=True)
    for foreign in ({**form, "key": {"program": "another"}}, {"tuning": 1}):
        engine = auto(other_loss)
        engine.adopt(foreign)
        train(engine, 1)
        assert engine.report()["source"] == ""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which `fdl` has started this program."""
    monkeypatch.delenv("FLODL_CACHE_DIR")
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    return tmp_path


def test_a_project_keeps_its_decisions_in_one_file_that_git_ignores(project):
    train(auto(), 80)
    train(auto(), 80, rows=7)
    assert sorted(one.name for one in (project / ".fdl").iterdir()) == [".gitignore", "engine.json"]
    form = json.loads((project / ".fdl/engine.json").read_text())
    batches = [one["key"]["batch"] for one in form["decisions"]]
    assert batches == [f"x float32 {rows}x8, y float32 {rows}x4" for rows in (6, 7)]
    for rows in (6, 7):
        assert train(auto(), 1, rows=rows).report()["source"] == "cache"


@pytest.mark.parametrize("link", [".fdl", ".fdl/engine.json"])
def test_a_link_in_the_project_is_not_followed(project, link, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    target = outside if link == ".fdl" else outside / "precious"
    if link != ".fdl":
        target.write_text("mine")
        (project / ".fdl").mkdir()
    (project / link).symlink_to(target)
    assert train(auto(), 80).report()["source"] == "measured"
    assert [one.read_text() for one in outside.iterdir()] == ["mine"] * (link != ".fdl")


@pytest.mark.parametrize(
    ("more", "rows", "told"),
    [
        ({}, 7, "another batch (x float32 6x8, y float32 6x4, now x float32 7x8, y float32 7x4)"),
        ({"train_fn": other_loss}, 6, "another program"),
        ({}, 6, ""),
    ],
)
@pytest.mark.usefixtures("decided")
def test_a_run_says_why_it_decides_again(more, rows, told, capsys):
    capsys.readouterr()
    train(auto(**more), 1, rows=rows)
    assert capsys.readouterr().out == (f"engine auto decides again: {told}\n" if told else "")


def test_a_run_that_was_too_short_to_try_anything_decides_that_for_runs_of_its_length(
    monkeypatch, capsys
):
    short = replace(QUICK, least_seconds=1e9)
    engines = []
    for steps, policy in ((100, short), (100, QUICK), (200, QUICK)):
        monkeypatch.setattr("flodl.train.step.auto.AutoPolicy", lambda policy=policy: policy)
        model = mlp()
        settings = StepSettings(train_fn=loss_fn)
        engines.append(train(AutoEngine(model, adam(model), settings, total_steps=steps), 80))
    assert [one.report()["source"] for one in engines] == ["measured", "cache", "measured"]
    assert [str(one.tuning) for one in engines] == ["plain", "plain", "fused optimizer"]
    assert "engine auto decides again: the training is longer\n" in capsys.readouterr().out


def test_the_record_names_the_tuning_of_every_step():
    engine = auto()
    used = []
    losses = loss_log(torch.device("cpu"), 0)
    for batch in batches(80):
        before = engine.tuning
        engine.step(batch, losses)
        used.append(str(before))
    stretches = engine.report()["stretches"]
    assert stretches[0] == [1, "plain"]
    ends = [first for first, _ in stretches[1:]] + [len(used) + 1]
    told = [
        word for (first, word), end in zip(stretches, ends, strict=True) for _ in range(end - first)
    ]
    assert told == used
    assert set(used) >= {"plain", "fused optimizer"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training decide in its first steps."""
    monkeypatch.setattr("flodl.train.step.auto.AutoPolicy", lambda: QUICK)


class Sources(Callback):
    def __init__(self, run: RunDirectory) -> None:
        self._run, self.seen = run, list[dict[str, Any]]()

    def on_train_end(self, run: object) -> None:  # noqa: ARG002
        environment = json.loads((self._run.path / "environment.json").read_text())
        self.seen.append(environment["engine"])


@pytest.mark.usefixtures("quick")
def test_a_resumed_run_goes_on_with_the_decision_of_its_checkpoint(tmp_path, monkeypatch):
    first = RunDirectory.create(tmp_path / "first")
    sources = Sources(first)
    training(n=90, epochs=4).engine("auto").run_dir(first).callbacks(sources).run()
    [told] = sources.seen
    assert (told["source"], told["decided"]) == ("measured", True)
    monkeypatch.setenv("FLODL_CACHE_DIR", str(tmp_path / "empty"))
    second = RunDirectory.create(tmp_path / "second")
    sources = Sources(second)
    steps: list[object] = []
    direct = AutoEngine._trials
    monkeypatch.setattr(AutoEngine, "_trials", lambda self: steps.append(1) or direct(self))
    resumed = training(n=90, epochs=5).engine("auto").run_dir(second).callbacks(sources)
    resumed.resume(first.last_checkpoint).run()
    [again] = sources.seen
    assert (again["source"], again["tuning"]) == ("checkpoint", told["tuning"])
    assert steps == []


@pytest.mark.usefixtures("quick")
def test_a_deterministic_training_uses_nothing_that_was_timed(tmp_path):
    training(n=90, epochs=4).engine("auto").run()
    assert (Path(os.environ["FLODL_CACHE_DIR"]) / "engine.json").is_file()
    run = RunDirectory.create(tmp_path)
    sources = Sources(run)
    again = training(n=90, epochs=4).deterministic().run_dir(run).callbacks(sources).run()
    assert sources.seen == [{"engine": "eager", "tuning": []}]
    plain = training(n=90, epochs=4).engine("eager").run()
    states = (handle.model.state_dict().values() for handle in (again, plain))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


# --- Threads --------------------------------------------------------------------------------------


def test_fewer_threads_hold_inside_of_a_step_only():
    seen: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(torch.get_num_threads())
        return loss_fn(model, batch)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = mlp()
        engine = TunedEngine(model, adam(model), StepSettings(train_fn=train_fn))
        engine.use(Tuning(threads=1))
        train(engine, 2)
        assert (seen, torch.get_num_threads()) == ([1, 1], 2)
        with pytest.raises(ZeroDivisionError), ThreadLimit(1):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_number_of_threads_that_the_step_sets_stays():
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        torch.set_num_threads(3)
        return loss_fn(model, batch)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = mlp()
        engine = TunedEngine(model, adam(model), StepSettings(train_fn=train_fn))
        engine.use(Tuning(threads=1))
        train(engine, 1)
        assert torch.get_num_threads() == 3
        assert engine.tuning == Tuning()
    finally:
        torch.set_num_threads(before)
