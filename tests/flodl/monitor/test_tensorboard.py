"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math

import pytest

from flodl.monitor.records import StepSeries
from flodl.monitor.tensorboard import TensorBoardSink
from tests import fork_server

BLOCKED = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == sys.argv[1] else found(name, *more)
from flodl.errors import FlodlError
from flodl.monitor.tensorboard import TensorBoardSink
from flodl.monitor.mlflow import MlflowSink
try:
    TensorBoardSink("events") if sys.argv[1] == "tensorboard" else MlflowSink("store")
except FlodlError as error:
    print(error)
"""


@pytest.fixture
def read(tmp_path):
    """What a reader of the folder sees."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def events():
        found = reader.EventAccumulator(str(tmp_path / "events"))
        found.Reload()
        return found

    return events


@pytest.mark.filterwarnings("default")
def test_epochs_steps_and_facts_are_in_the_event_file(tmp_path, monitor, clock, read):
    monitor.set_identity(run="2026-01-31T10-00-00", hash="cafe")
    monitor.set_metadata({"config": {"lr": {"value": 0.1, "origin": "fdl.yml:3:7"}, "a|b": None}})
    watching = monitor.add_sink(TensorBoardSink(tmp_path / "events"))
    for epoch, loss in enumerate([0.5, 0.25]):
        clock.now += 2
        monitor.log(epoch, 2.0, {"loss": loss, "group.accuracy": 1 - loss})
    monitor.log_steps([StepSeries("loss", [0, 1, 2], [3.0, math.nan, 1.0])])
    monitor.log_steps([StepSeries("loss", [3], [0.5])])
    monitor.finish()
    assert watching.join(60)
    assert watching.error is None

    found = read()
    losses = found.Scalars("epoch/loss")
    assert [(one.step, one.value) for one in losses] == [(1, 0.5), (2, 0.25)]
    assert losses[1].wall_time - losses[0].wall_time == pytest.approx(2.0)
    assert [one.value for one in found.Scalars("epoch/group.accuracy")] == [0.5, 0.75]
    assert [one.value for one in found.Scalars("epoch/seconds")] == [2.0, 2.0]
    steps = found.Scalars("step/loss")
    assert [one.step for one in steps] == [0, 1, 2, 3]
    assert math.isnan(steps[1].value)
    assert [one.value for one in steps if one.step != 1] == [3.0, 1.0, 0.5]
    text = {tag: found.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
            for tag in found.Tags()["tensors"]}  # fmt: skip
    assert "| lr | 0.1 (fdl.yml:3:7) |" in text["config/text_summary"]
    assert r"| a\|b | null |" in text["config/text_summary"]
    assert "| hash | cafe |" in text["run/text_summary"]
    assert text["end/text_summary"] == "complete after 2 epochs"


@pytest.mark.parametrize(
    ("package", "typed"),
    [("tensorboard", "pip install 'flodl[tensorboard]'"), ("mlflow", "pip install mlflow")],
)
def test_without_the_package_the_error_names_what_to_install(package, typed):
    program = fork_server.FORGET + BLOCKED
    done = fork_server.python("-c", program, package, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    assert f"needs the package {package}, which is not installed" in done.stdout
    assert typed in done.stdout


def test_a_folder_that_cannot_be_made_detaches_the_sink_and_not_the_run(tmp_path, monitor, capsys):
    pytest.importorskip("tensorboard")
    (tmp_path / "events").write_text("in the way")
    watching = monitor.add_sink(TensorBoardSink(tmp_path / "events"))
    monitor.log(0, 1.0, {"loss": 0.5})
    monitor.finish()
    assert watching.join(60)
    assert isinstance(watching.error, OSError)
    assert "detached, training continues" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_changed_facts_are_added_and_odd_media_are_shown(tmp_path, monitor, read):
    watching = monitor.add_sink(TensorBoardSink(tmp_path / "events"))
    monitor.set_metadata({"note": "first", "empty": {}})
    monitor.flush()
    monitor.set_metadata({"seed": 7})
    classes = [f"c{place}" for place in range(51)]
    monitor.confusion_matrix("many", [0, 50], [0, 50], classes=classes, step=1)
    monitor.roc("roc", [1, 1], [0.1, 0.4], step=1)
    monitor.pr("pr", [0, 0], [0.1, 0.4], step=1)
    monitor.histogram("w", [1.0, 2.0], step=1)
    monitor.table("answers", {"a": [None, 0.5]}, step=1)
    monitor.finish(timeout=100)
    assert watching.join(60)
    assert watching.error is None
    found = read()
    text = {tag: found.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
            for tag in found.Tags()["tensors"]}  # fmt: skip
    assert (text["note/text_summary"], text["seed/text_summary"]) == ("first", "7")
    assert not any(tag.startswith(("empty", "many", "pr")) for tag in text)
    assert text["answers/text_summary"].splitlines()[2:] == ["|  |", "| 0.5000 |"]
    assert set(found.Tags()["images"]) == {"many"}
    assert math.isnan(found.Scalars("roc/auc")[0].value)
    assert "w/not_finite" not in found.Tags()["scalars"]
