"""One entry that cannot be read never hides the others, in any listing."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fdl.cli.entry import main
from tests.fdl.batch.stand_in import installed
from tests.rows import each_row
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="makes every kind of file of Linux")

GOOD, OTHER = "2026-01-31T10-00-00", "2026-01-30T10-00-00"
RECORD = {"state": "complete", "started": "2026-01-31T10:00:00+00:00", "epochs": 1}
CONFIG = {"lr": {"value": 0.5, "origin": "default"}}
METRICS = "epoch,duration_s,val_loss,cpu_pct,ram_used,gpu_pct,vram_alloc,vram_spill\n1,1,0.5,,,,,\n"
WRONG = [None, 7, "x", [], {}, [7], True, 1e999, "2026"]


def good_run(folder):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(RECORD))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "metrics.csv").write_text(METRICS)
    (folder / "training.log").write_text(f"{folder.name}\n", errors="replace")


def spoil(path):
    """Put everything that cannot be read beside a path, in its place in further folders."""
    kinds = {
        "loop": lambda file: file.symlink_to(file.name),
        "dangling": lambda file: file.symlink_to("nowhere"),
        "fifo": os.mkfifo,
        "socket": bind,
        "folder": Path.mkdir,
        "broken": lambda file: file.write_bytes(b'{"state": "complete", \xff'),
        "deep": lambda file: file.write_text("[" * 100_000),
        "empty": lambda file: file.write_bytes(b""),
        "huge": lambda file: (file.touch(), os.truncate(file, 1 << 30)),
        "list": lambda file: file.write_text("[]"),
        "numbers": lambda file: file.write_text("1" * 10_000),
    }
    for name, make in kinds.items():
        make(path(name))


def bind(file):
    folder = Path.cwd()
    os.chdir(file.parent)
    try:
        # The path of a socket may have only a hundred characters.
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(file.name)
    finally:
        os.chdir(folder)


@pytest.fixture
def hostile(project):
    """A project whose every folder of records has entries that cannot be read."""
    root = project(
        {
            "fdl.yml": "commands: {train: {path: train}, lost: {path: lost}}\n",
            "train/fdl.yml": "entry: sh train.sh\n",
            "train/train.sh": "",
        }
    )
    runs = root / "runs"
    good_run(runs / GOOD)
    good_run(runs / OTHER)
    # As entries of the folder itself.
    spoil(lambda name: runs / name)
    for number, name in enumerate(("run.json", "config.json", "metrics.csv", "notes.json")):

        def inside(kind, name=name, number=number):
            folder = runs / f"2025-01-{number + 1:02}T10-00-00-{kind}"
            good_run(folder)
            (folder / name).unlink(missing_ok=True)
            return folder / name

        spoil(inside)
    for key in ("state", "started", "finished", "epochs", "pid", "host", "argv", "seconds",
                "resumed_from", "imported_from", "variables", "error", "goal"):  # fmt: skip
        for place, value in enumerate(WRONG):
            folder = runs / f"2024-01-01T10-00-00-{key}-{place}"
            good_run(folder)
            (folder / "run.json").write_text(json.dumps({**RECORD, key: value}))
    for place, value in enumerate(WRONG):
        folder = runs / f"2023-01-01T10-00-00-{place}"
        good_run(folder)
        (folder / "config.json").write_text(json.dumps({"lr": value, "x": {"value": value}}))
        (folder / "notes.json").write_text(json.dumps({"tags": value, "note": value}))
        (folder / "environment.json").write_text(json.dumps({"gpus": value, "python": value}))
    good_run(Path(os.fsdecode(os.fsencode(runs) + b"/\xff\xfe")))
    return root


def listed(fdl, *words):
    """What a listing prints. A name in no encoding is escaped, and nothing waits for a pipe."""
    done = fdl(*words, env={"PYTHONIOENCODING": "utf-8:strict"})
    assert "Traceback" not in done.err
    assert done.exit == 0, done.err
    return done.out


@pytest.mark.usefixtures("hostile")
@each_row(
    "words",
    [
        ["list"],
        ["list", "--csv"],
        ["list", "--columns", "name,lr,val_loss,seconds,age,started"],
        ["list", "--where", "lr = 0.5"],
        ["list", "--best", "val_loss"],
        ["show", GOOD],
        ["compare", GOOD, OTHER],
        ["tail", GOOD],
        ["tag", GOOD, "kept"],
    ],
)
def test_a_command_about_runs_finds_those_that_can_be_read(fdl, words):
    assert GOOD in listed(fdl, "runs", *words) + "".join(words[1:2] if words[0] != "list" else "")


@pytest.mark.usefixtures("hostile")
def test_the_runs_as_json_hold_every_run_that_can_be_read(fdl):
    content = json.loads(listed(fdl, "runs", "list", "--json"))
    names = {Path(one["path"]).name for one in content["runs"]}
    assert {GOOD, OTHER, "\udcff\udcfe"} <= names
    assert len(names) > 100
    assert len(content["damaged"]) > 10


def test_two_runs_are_compared_however_the_records_of_one_are(hostile, monkeypatch, capfd):
    monkeypatch.chdir(hostile)
    others = sorted((hostile / "runs").iterdir())
    assert len(others) > 150
    for other in others:
        code = main(["runs", "diff", f"runs/{GOOD}", os.fspath(other)])
        out, err = capfd.readouterr()
        # Its records hold no steps.
        assert code == 2, other
        assert out or err.startswith("error: ")


def test_the_queue_shows_the_jobs_that_can_be_read(hostile, fdl, tmp_path):
    cluster = installed(tmp_path / "cluster")
    (tmp_path / "cluster/queue/hold").touch()
    (hostile / "fdl.yml").write_text("slurm: {time: 60}\ncommands: {train: {path: train}}\n")
    jobs = hostile / ".fdl/slurm"
    waiting = subprocess.Popen(
        [sys.executable, "-m", "fdl", "--on", "slurm", "train"],
        cwd=hostile, env={**os.environ, **cluster},
    )  # fmt: skip
    with waiting:
        wait_for(lambda: list(jobs.glob("*/101.json")) or waiting.poll() is not None)
        spoil(lambda name: jobs / f"2000-01-01-{name}")
        (call,) = {one.parent for one in jobs.glob("*/101.json")}
        spoil(lambda name: call / f"{name}.json")
        done = fdl("runs", "list", "--json", env=cluster)
        waiting.terminate()
    assert waiting.returncode == 143
    assert [one["id"] for one in json.loads(done.out)["queued"]] == ["101"]


# Another user, whom permissions concern: the tests may run as root.
STRANGER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root becomes another user"
)
def test_what_another_user_may_not_read_hides_nothing():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "fdl.yml").write_text("commands: {train: {run: x}}\n")
        good_run(folder / "runs" / GOOD)
        for kind, mode in (("run", 0o000), ("listed", 0o444), ("entered", 0o111)):
            good_run(folder / "runs" / kind)
            (folder / "runs" / kind).chmod(mode)
        for file in ("run.json", "config.json", "metrics.csv", "training.log"):
            run = folder / "runs" / f"without-{file}"
            good_run(run)
            (run / file).chmod(0)
        for words in (["list"], ["list", "--json"], ["show", GOOD], ["list", "--best", "val_loss"]):
            done = subprocess.run(
                [*STRANGER, sys.executable, "-m", "fdl", "runs", *words],
                cwd=folder, env={**os.environ, "HOME": name}, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert GOOD in done.stdout


def test_pruning_and_cleaning_keep_what_cannot_be_read(fdl, hostile):
    before = sorted((hostile / "runs").iterdir())
    listed(fdl, "-y", "runs", "prune", "--keep", "1000")
    listed(fdl, "runs", "prune", "--keep", "1000", "--dry-run")
    assert sorted((hostile / "runs").iterdir()) == before


@pytest.mark.usefixtures("hostile")
def test_completion_offers_the_runs_that_can_be_read(fdl):
    assert GOOD in listed(fdl, "__complete", "bash", "--", "runs", "show", "2026")
    assert "val_loss" in listed(fdl, "__complete", "bash", "--", "runs", "list", "--best", "")


def test_the_page_of_many_runs_shows_those_that_can_be_read(hostile):
    from fdl.runs.pages.catalog import Cache, Catalog

    catalog = Catalog([hostile / "runs"], Cache(hostile / "cache"))
    assert {GOOD, OTHER} <= {one.path.name for one in catalog.entries()}


def test_sweeps(hostile, fdl):
    def sweep(folder, content):
        folder.mkdir()
        (folder / "sweep.json").write_text(json.dumps(content))

    row = {"name": "lr=1", "varied": {"lr": "1"}, "state": "done", "code": 0, "seconds": 1.0}
    sound = {"command": ["train"], "started": "2026", "each": {}, "goal": "", "runs": [row]}
    runs = hostile / "runs"
    sweep(runs / "sound", sound)
    for key in sound:
        for place, value in enumerate(WRONG):
            sweep(runs / f"wrong-{key}-{place}", {**sound, key: value})
    for key in row:
        for place, value in enumerate(WRONG):
            sweep(runs / f"row-{key}-{place}", {**sound, "runs": [{**row, key: value}]})

    def inside(kind):
        (runs / f"sweep-{kind}").mkdir()
        return runs / f"sweep-{kind}" / "sweep.json"

    spoil(inside)
    assert "sound" in listed(fdl, "sweep", "list")
    assert "sound" in listed(fdl, "sweep", "list", "--json")
    assert "sound" in listed(fdl, "__complete", "bash", "--", "sweep", "show", "so")
    assert "lr=1" in listed(fdl, "sweep", "show", "sound")


def test_libtorch_variants(hostile, fdl):
    for kind in ("precompiled", "builds"):
        folder = hostile / "libtorch" / kind
        (folder / "cpu" / "lib").mkdir(parents=True)
        spoil(lambda name, folder=folder: folder / name)

        def inside(name, folder=folder):
            (folder / f"arch-{name}" / "lib").mkdir(parents=True)
            return folder / f"arch-{name}" / ".arch"

        spoil(inside)
    out = listed(fdl, "libtorch", "list")
    assert "precompiled/cpu" in out
    assert "builds/cpu" in out
    listed(fdl, "libtorch", "list", "--json")
    assert "precompiled/cpu" in listed(
        fdl, "__complete", "bash", "--", "libtorch", "activate", "precompiled/c"
    )


def test_schemas_and_commands(hostile, fdl):
    cache = hostile / "train" / ".fdl" / "schema-cache"
    cache.mkdir(parents=True)
    spoil(lambda name: cache / f"{name}.json")
    spoil(lambda name: hostile / name)
    lone = hostile / "other" / ".fdl" / "schema-cache"
    lone.mkdir(parents=True)
    spoil(lambda name: lone / f"{name}.json")
    listed(fdl, "self", "schema", "list")
    listed(fdl, "self", "schema", "list", "--json")
    assert "train" in listed(fdl, "list")
    assert "train" in listed(fdl, "__complete", "bash", "--", "tr")


def test_the_own_record_of_a_command_may_be_anything(hostile, fdl, project):
    project({"fdl.yml": "commands: {a: {run: echo done, inputs: data}}", "data": ""})
    assert listed(fdl, "a") == "done\n"
    (state,) = (hostile / ".fdl" / "state").glob("a.*.json")

    def spoiled(kind):
        shutil.rmtree(state) if state.is_dir() and not state.is_symlink() else state.unlink()
        spoil(lambda name: state if name == kind else hostile / f"{kind}-{name}")
        # A folder in the place of the record can only be told.
        return fdl("a")

    for kind in ("loop", "dangling", "fifo", "broken", "deep", "empty", "huge", "list", "numbers"):
        done = spoiled(kind)
        assert (done.exit, done.out) == (0, "done\n"), kind
