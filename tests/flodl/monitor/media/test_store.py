"""What is kept of many records, in memory, in a folder, and in a page."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from flodl.errors import StateError
from flodl.monitor import Monitor
from flodl.monitor.media.folder import MediaFolderSink, path_of
from flodl.monitor.media.records import MediaRecord, Text
from flodl.monitor.media.store import MediaStore, embedded
from flodl.monitor.records import RunInfo
from tests.rows import each_row


def record(step: int, name: str = "poem", text: str = "") -> MediaRecord:
    return MediaRecord(name, "text", step, 0, Text(text or f"text {step}"))


def steps(store: MediaStore, name: str = "poem") -> list[int]:
    return [one.step for one in store.of("text", name)]


@each_row("kept", [2, 5, 64])
def test_the_first_the_newest_and_evenly_spaced_ones_are_kept(kept):
    store, alive = MediaStore(kept), set()
    for step in range(1000):
        alive.add(step)
        alive -= {gone.step for gone in store.add(record(step))}
        found = steps(store)
        assert set(found) == alive
        assert (found[0], found[-1]) == (0, step)
        assert len(found) <= kept
        gaps = {after - before for before, after in pairwise(found[:-1])}
        assert len(gaps) <= 1, "evenly spaced up to the newest"
    assert len(steps(store)) >= kept / 2


def test_a_repeated_step_replaces_what_came_after_it():
    store = MediaStore(8)
    for step in (1, 2, 3, 4):
        store.add(record(step))
    assert [one.step for one in store.add(record(3, text="again"))] == [4, 3]
    assert steps(store) == [1, 2, 3]
    assert store.of("text", "poem")[-1].content.text == "again"


def test_names_do_not_push_each_other_out_until_the_bytes_are_spent():
    store = MediaStore(8, most_bytes=40_000)
    for step in range(8):
        for name in "abcd":
            store.add(record(step, name, "x" * 1000))
    assert len(store.records()) == 32
    for step in range(8):
        store.add(record(step, "large", "x" * 5000))
    assert sum(one.size for one in store.records()) <= 40_000
    assert all(steps(store, name)[-1] == 7 for name in [*"abcd", "large"])


def test_a_folder_holds_what_is_kept_and_an_index_of_it(tmp_path):
    sink = MediaFolderSink(tmp_path / "media", kept=4)
    for step in range(1, 21):
        sink.media(record(step))
        sink.flush()
    index = json.loads((tmp_path / "media/index.json").read_text())
    [entry] = index["media"]
    assert [one["step"] for one in entry["records"]] == [1, 9, 17, 20]
    files = {one["file"] for one in entry["records"]}
    found = {str(path.relative_to(tmp_path / "media")) for path in tmp_path.rglob("*.txt")}
    assert found == files == {f"text/poem/step-{step}.txt" for step in (1, 9, 17, 20)}
    assert (tmp_path / "media/text/poem/step-9.txt").read_text() == "text 9"


def test_a_run_that_starts_again_in_its_folder_goes_on(tmp_path):
    def run(steps: range) -> None:
        monitor = Monitor(1, terminal=False)
        monitor.add_sink(MediaFolderSink(tmp_path))
        for step in steps:
            monitor.text("poem", f"text {step} from {steps.start}", step=step)
            monitor.histogram("w", [step, 2 * step], step=step)
        monitor.finish()

    run(range(1, 6))
    run(range(4, 8))
    index = json.loads((tmp_path / "index.json").read_text())
    poem, histogram = index["media"]
    assert [one["step"] for one in poem["records"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [one["step"] for one in histogram["records"]] == [1, 2, 3, 4, 5, 6, 7]
    assert (tmp_path / "text/poem/step-4.txt").read_text() == "text 4 from 4"
    assert [one["high"] for one in json.loads((tmp_path / "histogram/w.json").read_text())] == [
        2, 4, 6, 8, 10, 12, 14,
    ]  # fmt: skip


def test_the_limit_counts_what_an_earlier_process_has_recorded(tmp_path):
    for steps in (range(1, 9), range(9, 17)):
        sink = MediaFolderSink(tmp_path, kept=4)
        for step in steps:
            sink.media(record(step))
        sink.flush()
    [entry] = json.loads((tmp_path / "index.json").read_text())["media"]
    found = [one["step"] for one in entry["records"]]
    assert (found[0], found[-1], len(found) <= 4) == (1, 16, True)
    files = {file.name for file in (tmp_path / "text/poem").iterdir()}
    assert files == {f"step-{step}.txt" for step in found}
    assert (tmp_path / "text/poem/step-1.txt").read_text() == "text 1"


def test_the_limit_counts_the_bytes_of_files_of_an_earlier_process(tmp_path):
    for steps in (range(1, 9), range(9, 13)):
        sink = MediaFolderSink(tmp_path, most_bytes=10_000)
        for step in steps:
            sink.media(record(step, text="a" * 1000))
        sink.flush()
    files = list((tmp_path / "text/poem").iterdir())
    assert sum(file.stat().st_size for file in files) <= 10_000


@each_row(
    "name", ["../../etc/passwd", "/root", "a/../b", "a//b", "CON<>:|?*", "é" * 90, ".", "Loss"]
)
def test_every_name_stays_inside_of_the_folder(tmp_path, name):
    sink = MediaFolderSink(tmp_path / "media")
    sink.media(record(1, name))
    sink.flush()
    [file] = (tmp_path / "media/text").rglob("*.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["media"]
    assert file.read_text() == "text 1"
    index = json.loads((tmp_path / "media/index.json").read_text())
    assert index["media"][0]["name"] == name


def test_different_names_have_different_paths():
    names = ["loss", "Loss", "LOSS", "a b", "a_b", "a:b", "a?b", "a/b", "a//b", "x" * 90, "x" * 91]
    assert len({path_of(name).lower() for name in names}) == len(names)


def test_a_page_takes_the_newest_first_then_the_first_and_says_what_it_leaves_out():
    store = MediaStore(64)
    for step in range(33):
        for name in "ab":
            store.add(record(step, name, "x" * 1000))
    size = store.records()[0].size
    page = json.loads(embedded(store, 10 * size + size // 2))
    assert [[one["step"] for one in entry["records"]] for entry in page["entries"]] == [
        [0, 8, 16, 24, 32]
    ] * 2
    out = page["left_out"]
    assert out["records"] == 56
    assert out["bytes"] == pytest.approx(56 * size, rel=0.01)
    whole = json.loads(embedded(store))
    assert [len(entry["records"]) for entry in whole["entries"]] == [33, 33]
    assert whole["left_out"]["records"] == 0
    assert json.loads(embedded(MediaStore())) == {
        "entries": [], "left_out": {"records": 0, "bytes": 0, "budget": 8 * 2**20},
    }  # fmt: skip


class Receiver:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[MediaRecord] = []

    def open(self, info: RunInfo) -> None: ...
    def record(self, record) -> None: ...
    def finish(self, summary) -> None: ...
    def media(self, record: MediaRecord) -> None:
        self.got.append(record)


def test_steps_and_epochs_without_a_trainer():
    monitor, sink = Monitor(3, terminal=False), Receiver()
    monitor.add_sink(sink)
    monitor.text("poem", "before")
    monitor.log(0, 1.0)
    monitor.text("poem", "after an epoch")
    from flodl.monitor.records import StepSeries

    monitor.log_steps([StepSeries("loss", range(30), [0.0] * 30)])
    monitor.text("poem", "after 30 steps")
    monitor.text("poem", "as said", step=77)
    late = Receiver()
    monitor.flush()
    monitor.add_sink(late)
    monitor.finish()
    seen = [(one.step, one.epoch) for one in sink.got]
    assert seen == [(0, 0), (1, 1), (30, 1), (77, 1)]
    assert late.got == sink.got, "a late sink gets what was kept"
    with pytest.raises(StateError, match=r"text\(\) after finish\(\)"):
        monitor.text("poem", "too late")


def test_wrong_values_are_reported_once_and_the_run_goes_on(capsys):
    monitor, sink = Monitor(1, terminal=False), Receiver()
    monitor.add_sink(sink)
    for _ in range(3):
        monitor.confusion_matrix("cm", torch.tensor([0, 7]), torch.tensor([0, 1]), classes="ab")
        monitor.image("photo", torch.tensor([[0.0, 255.0]]))
    with pytest.raises(ValueError, match=r"labels of shape \[2\], scores of shape \[3\]"):
        monitor.roc("roc", [0, 1], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"image\(''\)"):
        monitor.image("", torch.rand(2, 2))
    monitor.finish()
    said = capsys.readouterr().err
    assert said.count("the label 7 is not one of the 2 classes 0 to 1") == 1
    assert said.count("values from 0 to 255 were clamped to [0, 1]") == 1
    assert {one.kind for one in sink.got} == {"image"}


def test_media_that_come_too_fast_are_left_out_and_counted(monkeypatch, capsys):
    import threading

    gate = threading.Event()
    monkeypatch.setattr("flodl.monitor.media.methods.MOST_WAITING", 3)
    monitor, sink = Monitor(1, terminal=False), Receiver()
    monitor.add_sink(sink)
    monitor.record_histograms([("slow", lambda: gate.wait(10) and None)])
    for step in range(10):
        monitor.text("poem", "text", step=step)
    gate.set()
    monitor.finish()
    assert len([one for one in sink.got if one.kind == "text"]) == 2
    assert "8 media records were left out" in capsys.readouterr().err


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="media_kept is 1; use 2 or more"):
        Monitor(1, terminal=False, media_kept=1)
    monitor = Monitor(1, terminal=False)
    with pytest.raises(ValueError, match="normalize='rows': use None, 'true', 'pred' or 'all'"):
        monitor.confusion_matrix("cm", [0], [0], classes=["a"], normalize="rows")
    monitor.finish()


@each_row(
    "index",
    [
        "",
        "[]",
        '{"media": [{"kind": "text"}]}',
        '{"media": 3}',
        '{"media": [{"kind": "../x", "name": "y", "records": [{"step": 0, "epoch": 1}]}]}',
    ],
)
def test_a_damaged_index_is_replaced(tmp_path, index):
    (tmp_path / "index.json").write_text(index, encoding="utf-8")
    sink = MediaFolderSink(tmp_path)
    sink.media(record(1))
    sink.flush()
    [entry] = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))["media"]
    assert (entry["name"], [one["step"] for one in entry["records"]]) == ("poem", [1])


@each_row("count", [1, 2, 3, 6])
def test_a_page_with_room_has_every_record_of_a_name(count):
    store = MediaStore()
    for step in range(count):
        store.add(record(step))
    [entry] = json.loads(embedded(store))["entries"]
    assert [one["step"] for one in entry["records"]] == list(range(count))


def test_the_index_of_a_run_from_elsewhere_deletes_and_reads_nothing_outside(tmp_path):
    folder = tmp_path / "run/media"
    folder.mkdir(parents=True)
    precious = tmp_path / "precious.json"
    precious.write_text("[]")
    step = {"step": 5, "epoch": 1, "file": str(precious)}
    entries = [
        {
            "kind": "text",
            "name": "note",
            "records": [step, {**step, "file": "../../precious.json"}],
        },
        {"kind": "histogram", "name": "w", "file": str(precious), "records": []},
    ]
    (folder / "index.json").write_text(json.dumps({"version": 1, "media": entries}))
    monitor = Monitor(1, terminal=False)
    monitor.add_sink(MediaFolderSink(folder))
    monitor.text("note", "new", step=1)
    monitor.finish(timeout=100)
    assert precious.read_text() == "[]"
    index = json.loads((folder / "index.json").read_text())
    assert [one["records"] for one in index["media"] if one["kind"] == "text"] == [
        [{"step": 1, "epoch": 1, "file": "text/note/step-1.txt"}]
    ]
