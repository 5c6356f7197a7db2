"""`fdl runs diff`: the step at which two real trainings part, and the cause that was planted."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from array import array
from pathlib import Path
from textwrap import dedent

import pytest

from fdl.base.step_trace import Batches
from fdl.runs.acts import differing
from fdl.runs.causes import changed_code, changed_lines, kind_of
from fdl.runs.run import read
from fdl.runs.trace import first_difference
from fdl.runs.trace_file import Stretch, Trace
from tests import fork_server
from tests.conftest import training_path
from tests.fdl.run_directory.trails import trail
from tests.rows import each_row

PROGRAM = """
import sys
import torch
from fdl import FdlArgs, option
from flodl import RunDirectory, Trainer, entry
from torch import nn
from torch.utils.data import TensorDataset

SCALE = 1.0


class Args(FdlArgs):
    '''Fit a line.'''

    epochs: int = option(default=2, help="Passes")
    lr: float = option(default=0.1, help="Learning rate")
    seed: int = option(default=42, help="Seed")
    batch_size: int = option(default=8, help="Samples per step")
    dropout: float = option(default=0.0, help="Dropout")
    accumulate: int = option(default=1, help="Batches per step")
    clip: float = option(default=1e9, help="Largest gradient norm")
    threads: int = option(default=1, help="Threads")
    output: str = option(default="runs", help="Folder of the runs")
    resume: str | None = option(help="Run to continue")


def main(args):
    torch.set_num_threads(args.threads)
    x = torch.load("x.pt", weights_only=True)
    trainer = (
        Trainer.builder(
            lambda _: nn.Sequential(nn.Linear(4, 8), nn.Dropout(args.dropout), nn.Linear(8, 1)),
            lambda parameters: torch.optim.SGD(parameters, lr=args.lr),
            lambda model, batch: SCALE * nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
        .dataset(TensorDataset(x, x.sum(1, keepdim=True)))
        .batch_size(args.batch_size)
        .num_epochs(args.epochs)
        .seed(args.seed)
        .accumulate(args.accumulate)
        .engine("eager")
        .max_grad_norm(args.clip)
    )
    with RunDirectory.create(args.output, config=args.resolved(), resume=args.resume) as run:
        trainer.run_dir(run).run()


if __name__ == "__main__":
    sys.exit(entry(main, Args.parse_or_schema()))
"""

DATA = "import torch; torch.manual_seed(0); torch.save(torch.randn(64, 4), 'train/x.pt')"


class Bench:
    """A project in a git repository whose trainings are compared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train").mkdir()
        (folder / "fdl.yml").write_text("commands: {train: }\n")
        (folder / "train/fdl.yml").write_text("entry: python main.py\ntraining: {lr: 0.1}\n")
        (folder / "train/main.py").write_text(dedent(PROGRAM))
        self.python(DATA, folder)
        self.git("init", "-q", ".")
        self.git("add", "-A")
        self.git("commit", "-qm", "one")

    def git(self, *words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True)

    def change_sample(self, number: int, by: str = "1") -> None:
        """Change the values of one sample in the file of the data."""
        change = f"import torch; x = torch.load('x.pt'); x[{number}] += {by}; torch.save(x, 'x.pt')"
        self.python(change, self.folder / "train")

    @staticmethod
    def python(program: str, folder: Path) -> None:
        """Run a program that imports torch."""
        done = fork_server.python("-c", program, cwd=folder, torch=True, abrupt=True)
        assert done.returncode == 0, done.stderr

    def fdl(self, *words: str, timeout: float = 120):
        env = {**os.environ, "CI": "1", "COLUMNS": "200", "PATH": training_path(os.environ)}
        return fork_server.python(
            *("-m", "fdl", *words), cwd=self.folder, env=env, timeout=timeout, abrupt=True
        )

    def train(self, name: str, *words: str) -> str:
        """Train into a folder of its own; the path of the run."""
        done = self.fdl("train", "--output", f"runs/{name}", *words)
        assert done.returncode == 0, done.stderr
        (run,) = (self.folder / "runs" / name).iterdir()
        return str(run.relative_to(self.folder))

    def diff(self, left: str, right: str):
        """The exit code and the document of a comparison."""
        done = self.fdl("runs", "diff", left, right, "--json")
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("diff"))


@pytest.fixture(scope="module")
def base(bench):
    return bench.train("base")


@pytest.fixture(scope="module")
def faster(bench):
    return bench.train("lr", "--lr", "0.2")


def first(document):
    """What differs first, and the name of the most likely cause."""
    found = document["difference"]
    return found["what"], document["causes"][0]["name"]


def test_equal_runs_are_proved_equal(bench, base):
    code, document = bench.diff(base, bench.train("again"))
    assert (code, document["agree"], document["difference"]) == (0, True, None)
    assert document["steps"] == {"first": 1, "last": 16}
    assert "In steps 1 to 16 both have the same samples in the same order" in document["proof"]
    # The folder differs, and nothing else.
    assert {one["name"] for one in document["causes"] if one["kind"] != "files"} == set()


def test_another_seed_is_named_with_both_places(bench, base):
    other = bench.train("seed", "--seed", "43")
    done = bench.fdl("runs", "diff", base, other)
    assert done.returncode == 1
    assert "Before step 1: the weights differ: 0.weight, 0.bias" in done.stdout
    assert "Cause: seed 42 (default) against 43 (command line)\n" in done.stdout


def test_another_rate_appears_in_the_loss_of_the_next_step(bench, base, faster):
    code, document = bench.diff(base, faster)
    assert code == 1
    assert first(document) == ("loss", "lr")
    found = document["difference"]
    assert (found["certain_from"], found["certain_to"], found["agreed_steps"]) == (1, 2, 1)
    assert document["certain"]
    cause = document["causes"][0]
    assert cause["left_origin"] == "train/fdl.yml:2:16"
    assert cause["sentence"] == "lr 0.1 (train/fdl.yml:2:16) against 0.2 (command line)"


def test_a_changed_line_of_code_is_quoted(bench, base):
    program = bench.folder / "train/main.py"
    before = program.read_text()
    program.write_text(before.replace("SCALE = 1.0", "SCALE = 1.5"))
    try:
        other = bench.train("code")
    finally:
        program.write_text(before)
    done = bench.fdl("runs", "diff", base, other)
    assert done.returncode == 1
    assert "At step 1, in epoch 1: the loss is " in done.stdout
    assert "Cause: train/main.py was changed\n" in done.stdout
    assert "  train/main.py:9: +SCALE = 1.5\n" in done.stdout
    # The other way round, the signs are turned.
    turned = bench.fdl("runs", "diff", other, base)
    assert "  train/main.py:9: -SCALE = 1.5\n" in turned.stdout


def test_another_package_is_a_cause_of_what_settings_do_not_explain(bench, base, tmp_path):
    program = bench.folder / "train/main.py"
    before = program.read_text()
    program.write_text(before.replace("SCALE = 1.0", "SCALE = 1.5"))
    try:
        other = bench.train("package")
    finally:
        program.write_text(before)
    # As if the program had not changed, and the library had.
    copy = shutil.copytree(bench.folder / other, tmp_path / "2026-01-31T10-00-00")
    code = (bench.folder / base / "code.diff").read_text()
    (copy / "code.diff").write_text(code)
    packages = (copy / "packages.txt").read_text()
    (copy / "packages.txt").write_text(packages.replace("torch==2.", "torch==1."))
    code, document = bench.diff(base, str(copy))
    assert code == 1
    assert first(document) == ("loss", "torch")
    assert document["certain"]


def test_a_changed_sample_is_named(bench, base):
    file = bench.folder / "train/x.pt"
    before = file.read_bytes()
    bench.change_sample(5)
    try:
        other = bench.train("pixel")
    finally:
        file.write_bytes(before)
    done = bench.fdl("runs", "diff", base, other)
    assert done.returncode == 1
    assert re.search(
        r"The runs agree for \d step.*\. At step \d, in epoch 1: sample 5 has other content, at "
        r"position \d of the batch\.\n\nCause: the data was changed\n",
        done.stdout,
    )


@pytest.mark.slow
def test_a_changed_sample_is_named_although_guards_left_it_out(bench):
    manifest, file = bench.folder / "train/fdl.yml", bench.folder / "train/x.pt"
    before = manifest.read_text(), file.read_bytes()
    manifest.write_text("entry: python main.py\ntraining: {lr: 0.1, guards: true}\n")
    try:
        good = bench.train("guarded")
        bench.change_sample(5, "float('nan')")
        other = bench.train("broken")
    finally:
        manifest.write_text(before[0])
        file.write_bytes(before[1])
    done = bench.fdl("runs", "diff", good, other)
    assert done.returncode == 1
    assert re.search(
        r"The runs agree for \d steps?\. At step \d, in epoch 1: sample \d+ instead of \d+ .*\n\n"
        r"Cause: the data was changed\n  sample 5 has other content\n"
        r"  the guards of the second run left out the batch: the loss is nan in epoch 0, batch \d "
        r"\(both counted from 0\)\n",
        done.stdout,
    )


def test_acts_of_guards_are_named_with_what_they_did(tmp_path):
    runs = [read(trail(tmp_path / f"2026-01-31T1{hour}-00-00")) for hour in range(2)]
    acts = (
        {"act": "rewind", "value": 4, "old": 5, "detail": "the loss is nan in epoch 0, batch 5"},
        {"act": "skip", "value": {"samples": [3]}, "detail": "epoch 0, batch 5: samples 3"},
    )
    lines = [json.dumps({"step": 4, "by": "guard", **act}) for act in acts]
    (runs[1].path / "acts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (cause,) = differing(*runs, 6)
    assert (cause.kind, cause.left) == ("acts", None)
    assert cause.right == "skip"
    assert cause.lines == (
        "the loss is nan in epoch 0, batch 5",
        "epoch 0, batch 5: samples 3",
    )


def test_what_no_record_explains_is_said(bench, base, faster, tmp_path):
    other = shutil.copytree(bench.folder / faster, tmp_path / "run")
    # As if the program had read the rate from a place of its own.
    shutil.copy(bench.folder / base / "config.json", other)
    done = bench.fdl("runs", "diff", base, str(other))
    assert done.returncode == 1
    assert "No recorded difference explains this. Not recorded are:\n  - the files of the data" in (
        done.stdout
    )


def test_a_norm_that_only_one_run_has_hides_no_other_one(tmp_path):
    def trace(*norms):
        made = Trace(tmp_path)
        made.facts = {"world_size": 1}
        made.stretches = [Stretch(0, Batches(0, 0, 1, 0, 4, 4))]
        made.losses, made.norms = array("d", [1.0, 1.0, 1.0]), array("d", norms)
        return made

    found = first_difference(trace(math.nan, 2, 3), trace(1, 2, 4))
    assert (found.step, found.what, found.left, found.right) == (3, "gradients", 3, 4)


def test_words_that_cannot_be_compared_end_with_two(bench, base):
    assert bench.fdl("runs", "diff", base, base).returncode == 2
    unknown = bench.fdl("runs", "diff", base, "nothing-like-that")
    assert unknown.returncode == 2
    assert "no run is called `nothing-like-that`" in unknown.stderr
    untraced = shutil.copytree(bench.folder / base, bench.folder / "bare/2026-01-31T10-00-01")
    (untraced / "steps.trace").unlink()
    done = bench.fdl("runs", "diff", base, str(untraced))
    assert done.returncode == 2
    assert "steps.trace" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("words", "what", "name"),
    [
        (("--batch-size", "16"), "data order", "batch_size"),
        (("--dropout", "0.5"), "loss", "dropout"),
        (("--accumulate", "2"), "data order", "accumulate"),
        (("--clip", "0.01"), "loss", "clip"),
        (("--lr", "0.05"), "loss", "lr"),
        (("--seed", "99"), "initial weights", "seed"),
        (("--epochs", "3"), None, "epochs"),
        (("--threads", "2"), None, "threads"),
    ],
)
def test_planted_causes_are_found(bench, seed, words, what, name):
    key = f"{name}-{seed}"
    left = bench.train(f"left-{key}", "--seed", str(seed))
    right = bench.train(f"right-{key}", "--seed", str(seed), *words)
    code, document = bench.diff(left, right)
    if what is None:  # it changes no step that both have
        assert (code, document["agree"]) == (0, True)
        assert name in {one["name"] for one in document["causes"]}
    else:
        assert code == 1
        assert first(document) == (what, name)


@pytest.mark.slow
def test_a_resumed_training_agrees_with_one_that_was_not_interrupted(bench):
    whole = bench.train("whole", "--epochs", "4")
    half = bench.train("half", "--epochs", "2")
    rest = bench.train("rest", "--epochs", "4", "--resume", half)
    code, document = bench.diff(whole, rest)
    assert (code, document["steps"]) == (0, {"first": 17, "last": 32})


@each_row(
    ("name", "kind"),
    [
        ("training.seed", "seed"), ("batch_size", "data"), ("optim.lr", "optimizer"),
        ("weight-decay", "optimizer"), ("weight_decay", "optimizer"), ("output", "files"),
        ("epochs", "files"), ("hidden", "model"), ("amp", "computation"), ("ranks", "data"),
    ],
)  # fmt: skip
def test_a_setting_has_a_kind_by_its_name(name, kind):
    assert kind_of(name) == kind


@each_row(
    ("left", "right", "expected"),
    [
        (["+a", "+b"], ["+b", "+a"], ("x.py:1: +b", "x.py:2: +a", "x.py:1: -a", "x.py:2: -b")),
        (["+a"], ["+a", "+a"], ("x.py:2: +a",)),
        (["+a", "+a"], ["+a"], ("x.py:2: -a",)),
        (["+a", "+b"], ["+b"], ("x.py:1: -a",)),
        (["+a"], ["+a"], None),
    ],
)
def test_the_same_lines_in_another_order_or_number_are_changed_code(
    tmp_path_factory, left, right, expected
):
    folder, head = tmp_path_factory.mktemp("code"), "diff --git a/x.py b/x.py\n@@ -0,0 +1 @@\n"
    runs = [read(trail(folder / f"2026-01-31T1{hour}-00-00")) for hour in range(2)]
    for run, lines in zip(runs, (left, right), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (run.path / "code.diff").write_text(f"# commit: {'a' * 40}\n{head}{text}")
    causes = list(changed_code(*runs))
    assert [one.lines for one in causes] == ([expected] if expected else [])


def test_changed_lines_have_their_places():
    text = """\
# flodl code 1
diff --git a/train/main.py b/train/main.py
--- a/train/main.py
+++ b/train/main.py
@@ -3,4 +3,5 @@ def f():
 same
-old
+new
+newer
 same
diff --git a/b.py b/b.py
--- /dev/null
+++ b/b.py
@@ -0,0 +1 @@
+only
"""
    assert [tuple(line) for line in changed_lines(text)] == [
        ("train/main.py", 4, "-old"),
        ("train/main.py", 4, "+new"),
        ("train/main.py", 5, "+newer"),
        ("b.py", 1, "+only"),
    ]
