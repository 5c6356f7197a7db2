"""``fdl runs import``: rare and damaged parts of the files of other programs."""

from __future__ import annotations

import json
import struct

import pytest

from fdl.runs.importing import foreign
from fdl.runs.importing.detect import runs
from fdl.runs.importing.foreign import Curve, UnreadableRunError
from fdl.runs.importing.write import Sorted
from tests.fdl.run_directory.test_import import event, field, record, scalar, varint
from tests.rows import each_row

EVENTS = "events.out.tfevents.1.host"


def imported(folder, *events, tail=b""):
    """The run of an event file with these events."""
    file = folder / EVENTS
    file.write_bytes(b"".join(map(record, events)) + tail)
    return foreign.read_tensorboard(folder, [file], "run")


def setting(name, value):
    """One setting of the HParams plugin; ``value`` is a field of ``google.protobuf.Value``."""
    return field(1, field(1, name) + field(2, value))


def session(tag, content):
    """A value of the HParams plugin."""
    plugin = field(1, field(1, b"hparams") + field(2, content))
    return field(1, tag) + field(9, plugin)


def test_settings_of_the_hparams_plugin_are_taken_over(tmp_path):
    settings = (
        setting(b"depth", b"\x11" + struct.pack("<d", 3))
        + setting(b"lr", b"\x11" + struct.pack("<d", 0.5))
        + setting(b"opt", field(3, b"adam"))
        + setting(b"flag", b"\x20\x01")
        + setting(b"empty", b"\x08\x00")
    )
    # An unknown field is passed over wherever it stands.
    start = field(3, settings + field(9, b"?")) + field(9, b"?")
    made = imported(tmp_path, event(0, session(b"_hparams_/session_start_info", start)))
    assert made.config == {"depth": 3, "lr": 0.5, "opt": "adam", "flag": True}
    assert list(made.config) == sorted(made.config)
    assert isinstance(made.config["depth"], int)
    assert (made.curves, made.origin) == ({}, "HParams of TensorBoard")


@each_row(("status", "state"), [(0, "complete"), (1, "complete"), (2, "failed"), (9, "complete")])
def test_the_hparams_plugin_says_how_a_run_ended(tmp_path, status, state):
    end = field(4, b"\x11" + bytes(8) + b"\x08" + varint(status))
    made = imported(
        tmp_path,
        event(0, scalar("loss", 0.5)),
        event(1, session(b"_hparams_/session_end_info", end)),
    )
    assert made.state == state
    assert made.curves["loss"].values == [0.5]


def test_a_damaged_event_of_the_hparams_plugin_is_left_out(tmp_path):
    broken = session(b"_hparams_/session_start_info", b"\x0a\x05ab")
    made = imported(tmp_path, event(0, broken), event(1, scalar("loss", 0.5)))
    assert made.warnings == [f"{tmp_path}: an event of the HParams plugin is damaged; left out"]
    assert made.curves["loss"].values == [0.5]


def tensor(kind, content):
    return field(8, b"\x08" + varint(kind) + content)


@each_row(
    ("value", "expected"),
    [
        (tensor(1, field(4, struct.pack("<f", 0.5))), 0.5),
        (tensor(2, field(4, struct.pack("<d", 0.5))), 0.5),
        (tensor(2, field(6, struct.pack("<d", 0.5))), 0.5),
        (tensor(1, field(5, struct.pack("<f", 0.5))), 0.5),
        (tensor(19, field(4, struct.pack("<e", 0.5))), 0.5),
        (tensor(19, b"\x68" + varint(0x3800)), 0.5),
        (tensor(3, b"\x38" + varint(-2)), -2.0),
        (tensor(1, field(2, field(2, b"\x08\x02")) + field(4, struct.pack("<2f", 1, 2))), None),
        (tensor(7, field(8, b"0.5")), None),
        (tensor(1, field(2, field(2, b"\x08\x01") + b"\x18\x01") + field(4, bytes(4))), 0.0),
        (tensor(1, field(4, bytes(8))), None),
        (tensor(1, field(2, field(2, field(1, b"?"))) + field(4, bytes(4))), None),
        (tensor(7, b""), None),
    ],
)
def test_a_tensor_is_a_value_only_if_it_has_one_number(tmp_path, value, expected):
    made = imported(tmp_path, event(3, field(1, b"x") + value))
    found = made.curves["x"].values if made.curves else [None]
    assert found == [expected]


@each_row(
    "damaged",
    [
        b"\x0b",  # a kind of field that does not exist
        b"\x0a\x05ab",  # a text that ends too early
        b"\x10",  # a field without its value
        b"\x10" + b"\xff" * 11,  # a number that never ends
    ],
)
def test_a_damaged_event_ends_the_reading_of_its_file(tmp_path, damaged):
    made = imported(tmp_path, event(0, scalar("loss", 0.5)), damaged, event(1, scalar("loss", 9)))
    assert made.warnings == [
        f"{tmp_path / EVENTS}: an event is damaged; what follows it is left out"
    ]
    assert made.curves["loss"].values == [0.5]
    with pytest.raises(UnreadableRunError, match="an event is damaged"):
        imported(tmp_path, damaged)


def test_fields_of_another_size_count_as_nothing(tmp_path):
    # The time has 4 bytes, and the tag is a number.
    made = imported(tmp_path, b"\x0d\x00\x00\x80\x3f" + field(5, field(1, b"\x08\x01")))
    assert made.started.timestamp() == 0
    assert made.curves == {}


def test_a_file_that_is_still_written_ends_before_its_incomplete_record(tmp_path):
    last = record(event(1, scalar("loss", 9)))
    for cut in range(len(last)):
        made = imported(tmp_path, event(0, scalar("loss", 0.5)), tail=last[:cut])
        assert (made.curves["loss"].values, made.warnings) == ([0.5], [])


@each_row("place", [0, 9, 13, 17])
def test_a_changed_byte_is_noticed(tmp_path, place):
    one = event(0, scalar("loss", 0.5))
    last = bytearray(record(event(1, scalar("loss", 9))))
    last[place] ^= 1
    made = imported(tmp_path, one, tail=bytes(last))
    assert made.curves["loss"].values == [0.5]
    assert made.warnings == [
        f"{tmp_path / EVENTS}: the record at byte {len(record(one))} is damaged; "
        "what follows it is left out"
    ]


def test_a_file_without_an_event_is_no_run(tmp_path):
    with pytest.raises(UnreadableRunError, match="has no complete event"):
        imported(tmp_path)


def test_an_event_file_can_be_named_itself_and_has_settings_beside(tmp_path):
    imported(tmp_path, event(0, scalar("loss", 0.5)))
    (tmp_path / "hparams.yaml").write_text("", encoding="utf-8")
    (made,) = runs([tmp_path / EVENTS])
    assert (made.name, made.config) == (tmp_path.name, {})
    assert made.origin == str(tmp_path / "hparams.yaml")


@each_row(
    ("text", "expected"),
    [
        ("- 1\n- 2\n", "is not a mapping"),
        ("a: [1", "cannot be read"),
        ("a: !!python/object:x.Y {b: [1]}\nc: !!python/name:x.Z ''\n", {"a": {"b": [1]}, "c": ""}),
    ],
)
def test_settings_beside_an_event_file(tmp_path, text, expected):
    imported(tmp_path, event(0, scalar("loss", 0.5)))
    (tmp_path / "hparams.yaml").write_text(text, encoding="utf-8")
    (made,) = runs([tmp_path])
    if isinstance(expected, str):
        assert isinstance(made, UnreadableRunError)
        assert expected in str(made)
    else:
        assert made.config == expected


def test_pytorch_keeps_settings_in_a_folder_of_its_own(tmp_path):
    imported(tmp_path, event(0, scalar("loss", 0.5)))
    inner = tmp_path / "1795500480.123"
    inner.mkdir()
    start = field(3, setting(b"lr", b"\x11" + struct.pack("<d", 0.5)))
    imported(inner, event(0, session(b"_hparams_/session_start_info", start)))
    (made,) = runs([tmp_path])
    assert (made.config, list(made.curves)) == ({"lr": 0.5}, ["loss"])


def test_names_that_flodl_gave_its_metrics_are_taken_apart():
    found = Sorted(
        {
            "step/loss": Curve([1, 2], [0.5, 0.25], [0, 1]),
            "epoch/loss": Curve([1, 2], [0.4, 0.2], [10, 15]),
            "resources/ram": Curve([1], [3], [0]),
        }
    )
    assert found.epochs == 2
    assert list(found.by_step) == ["loss"]
    assert [line.split(",")[:3] for line in found.table().splitlines()] == [
        ["epoch", "duration_s", "loss"],
        ["1", "", "0.4"],
        ["2", "5.000", "0.2"],
    ]


@each_row(
    ("steps", "expected"),
    [
        ([0, 4, 8], [3, 7, 11]),  # at the beginning of an epoch
        ([3, 7, 11], [3, 7, 11]),  # at its end
        ([0, 3, 4, 7, 8, 11], [3, 7, 11]),  # both
        (list(range(12)), [3, 7, 11]),  # in each step
        ([4], [11]),
        ([11], [11]),
    ],
)
def test_an_epoch_may_be_recorded_when_it_begins_or_ends(steps, expected):
    epochs = [(0 if steps in ([4], [11]) else step // 4) for step in steps]
    found = Sorted(
        {
            "epoch": Curve(steps, list(map(float, epochs)), [0.0] * len(steps)),
            "loss": Curve(list(range(12)), list(map(float, range(12))), [0.0] * 12),
            "val": Curve([3, 7, 11], [0.3, 0.7, 1.1], [0.0] * 3),
        }
    )
    assert found.by_epoch["loss"].values == expected
    assert found.by_epoch["loss"].steps == list(range(1, len(expected) + 1))
    assert found.by_epoch["val"].values[-1] == 1.1


def test_epochs_that_are_no_number_and_columns_without_one_are_passed_over():
    nan = float("nan")
    found = Sorted(
        {
            "epoch": Curve([0, 1, 2], [0, nan, 1], [nan] * 3),
            "loss": Curve([0, 1, 2], [3, 2, 1], [nan] * 3),
        }
    )
    assert found.by_epoch["loss"].values == [3, 1]
    assert (found.marks.steps, found.marks.values) == ([0, 2], [1, 2])


def test_a_long_curve_without_any_number_has_rows():
    steps = list(range(5000))
    table = Sorted({"loss": Curve(steps, [float("nan")] * 5000, [0.0] * 5000)}).table()
    assert table.splitlines()[1] == "0,nan"
    assert table.splitlines()[-1] == "4999,nan"
    assert Sorted({}).table() == "step\n"


MLFLOW = "lifecycle_stage: active\nstatus: {status}\nstart_time: {start}\n"


@each_row(
    ("status", "start", "tags", "state", "name"),
    [
        ("FAILED", "null", {}, "failed", "a1"),
        ("5", "1795500487467", {"mlflow.runName": "fox"}, "interrupted", "fox"),
    ],
)
def test_a_run_of_mlflow_without_some_facts(tmp_path, status, start, tags, state, name):
    folder = tmp_path / "a1"
    (folder / "metrics").mkdir(parents=True)
    (folder / "tags").mkdir()
    for tag, text in tags.items():
        (folder / "tags" / tag).write_text(text)
    (folder / "meta.yaml").write_text(MLFLOW.format(status=status, start=start))
    (folder / "metrics/loss").write_text("1795500487468 0.5\nthree words here\n1795500487469\n")
    (folder / "metrics/empty").write_text("")
    (made,) = runs([tmp_path])
    assert (made.state, made.name, made.finished) == (state, name, None)
    assert (made.curves["loss"].steps, list(made.curves)) == ([0], ["loss"])
    assert [line.rpartition(":")[2] for line in made.warnings] == [
        "2 is not a value; it is left out",
        "3 is not a value; it is left out",
    ]


def test_a_csv_log_without_settings_and_with_text_in_a_cell(project, fdl):
    home = project(
        {
            "fdl.yml": "entry: python main.py\noutput: {dir: out}",
            "logs/..odd name/metrics.csv": "epoch,step,loss\n0,x,0.5\n0,1,high\n0,2,0.25,extra\n",
        }
    )
    assert fdl("runs", "import", "logs/..odd name").exit == 0
    (run,) = (home / "out/imported").iterdir()
    assert run.name == "odd-name"
    assert json.loads((run / "config.json").read_text()) == {}
    (run / "metrics.csv").unlink()
    assert fdl("runs", "import", "logs/..odd name").err == "1 run: 1 updated\n"
    assert (run / "metrics.csv").read_text().splitlines()[1].startswith("1,,0.25,")
