"""Twelve notebooks of a first day, executed by nbclient in one kernel."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from tests import fork_server
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.notebooks.kernel import Notebook, Shown

FIRST = """
import time
import torch
from torch import nn
from flodl import RunDirectory, Trainer, digits

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, image):
        return self.layers(image)

pause = 0.0

def make_model(device):
    return Net().to(device)

def train_step(model, batch):
    time.sleep(pause)
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])

def trainer(epochs, runs="runs"):
    one = Trainer.builder(make_model, torch.optim.AdamW, train_step)
    one.dataset(digits("train")).batch_size(256).num_epochs(epochs).seed(1)
    return one.run_dir(RunDirectory.create(runs))
"""

SCORE = """
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
lr = parser.parse_args().lr
with open(os.path.join(os.environ["FDL_RUN_DIR"], "metrics.json"), "w") as file:
    json.dump({"val_loss": (lr - 0.25) ** 2}, file)
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook after its first cell."""
    from tests.notebooks.kernel import Notebook

    for notebook in Notebook(tmp_path_factory.mktemp("notebook")).open():
        assert notebook(FIRST).error is None
        yield notebook


def newest(cell: Notebook, runs: str = "runs"):
    """The folder of the newest run."""
    return max((cell.folder / runs).iterdir())


def losses(shown: Shown) -> list[str]:
    """The losses of the epoch lines."""
    return re.findall(r"epoch \d+/\d+  loss=(\S+)", shown.out)


def test_a_training_prints_a_line_per_epoch_and_ends_in_a_short_card(cell):
    shown = cell("trainer(3).run().join()")
    assert len(losses(shown)) == 3
    assert not set(shown.out) & {"\r", "\x1b"}
    assert shown.replaced == [], "lines stay in a notebook that a program executes"
    assert shown.data["text/plain"] == "<TrainedState: 2 parameters, 0 buffers, 650 values>"
    assert "complete · epoch 3 of 3" in shown.data["text/html"]


def test_a_person_sees_a_bar_that_is_replaced_in_place(cell):
    cell("from IPython.display import DisplayHandle\nstates, update = [], DisplayHandle.update")
    cell("def noting(self, *a, **k): states.append(a[0]); update(self, *a, **k)")
    cell("DisplayHandle.update = noting")
    cell("pause = 0.05")
    shown = cell("handle = trainer(1).run()", person=True)
    cell("DisplayHandle.update, pause = update, 0.0")
    assert len(losses(shown)) == 1
    assert shown.replaced == [{"text/plain": "", "text/html": ""}], "nothing stays at the end"
    bars = cell("print([one['text/plain'] for one in states])").out
    assert re.search(r"epoch 1/1  ━+.*\d/6  loss=", bars)
    assert "<pre" in cell("states[0]['text/html']").data["text/plain"]
    assert repr("") in bars


def test_options_of_a_program_ignore_those_of_the_kernel(cell):
    cell("from fdl import FdlArgs, option")
    cell("class Args(FdlArgs):\n    epochs: int = option(default=10, help='Passes')")
    assert cell("Args.parse_or_schema().epochs").data == {"text/plain": "10"}
    (cell.folder / "args.py").write_text(
        "from fdl import FdlArgs, option\n"
        "class Args(FdlArgs):\n    epochs: int = option(default=10, help='Passes')\n"
        "print(Args.parse_or_schema().epochs)\n"
    )
    assert cell("%run args.py --epochs 3").out == "3\n"
    record = json.loads((newest(cell) / "run.json").read_text())
    assert not [word for word in record["argv"] if word.endswith(".json")]


def test_an_interrupted_cell_leaves_a_checkpoint_and_a_later_one_resumes(cell):
    cell("pause = 0.05")
    before = set((cell.folder / "stopped").glob("*"))

    def interrupt():
        def is_on_its_way():
            made = set((cell.folder / "stopped").glob("*")) - before
            tables = [one / "metrics.csv" for one in made]
            return any(one.is_file() and one.read_text().count("\n") > 2 for one in tables)

        wait_for(is_on_its_way)
        cell.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    shown = cell("handle = trainer(60, 'stopped').run()")
    thread.join()
    assert shown.error is not None
    assert shown.error[0] == "KeyboardInterrupt"
    run = newest(cell, "stopped")
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert (run / "last.fdl").is_file()
    done = int(json.loads((run / "run.json").read_text())["epochs"])
    cell("pause = 0.0")
    resumed = cell(f"handle = trainer({done + 2}, 'more').resume('stopped/{run.name}').run()")
    assert resumed.error is None
    assert json.loads((newest(cell, "more") / "run.json").read_text())["epochs"] == done + 2


def test_the_same_cell_again_is_a_second_run_with_the_same_losses(cell):
    first, second = (cell("handle = trainer(2, 'twice').run()") for _ in range(2))
    assert losses(first) == losses(second)
    assert len(losses(first)) == 2
    assert len(list((cell.folder / "twice").iterdir())) == 2


def test_the_live_page_is_a_frame(cell):
    cell("handle = trainer(1).run()")
    frame = cell("handle.live(400)").data["text/html"]
    (address,) = re.findall(r'src="([^"]+)"', frame)
    with urlopen(address) as answer:
        assert answer.status == 200


def test_two_ranks_train_functions_and_classes_of_cells(cell):
    python = fork_server.torch_program(os.environ)  # ranks do not import torch each time
    cell(f"import multiprocessing\nmultiprocessing.set_executable({python!r})")
    shown = cell("handle = trainer(2, 'ranks').device('cpu').ranks(2).run()\nhandle")
    assert shown.error is None
    assert "complete · epoch 2 of 2" in shown.data["text/html"]
    assert cell("handle.world_size, type(handle.model) is Net").data == {"text/plain": "(2, True)"}
    alone = cell("handle = trainer(2, 'ranks').run()")
    assert len(losses(alone)) == 2


def test_a_sweep_runs_from_a_cell_and_its_runs_are_compared(cell):
    (cell.folder / "fdl.yml").write_text("commands: {train: {path: train}}\n")
    (cell.folder / "train").mkdir()
    (cell.folder / "train/fdl.yml").write_text("entry: python score.py\n")
    (cell.folder / "train/score.py").write_text(SCORE)
    swept = cell("!fdl train --each lr=0.5,0.25")
    assert "sweep" in swept.out
    assert "2 of 2 runs done" in swept.out
    shown = cell("!fdl runs compare runs/train/*/lr=*")
    assert "0.0625" in shown.out
    assert not re.search(r"\x1b\[[^m]*[A-KS]", shown.out), "no movement of a cursor"


def test_a_graph_is_its_drawing(cell):
    cell("from flodl import FlowBuilder")
    shown = cell("FlowBuilder.from_(nn.Linear(4, 8)).through(nn.ReLU()).build()")
    assert shown.error is None, shown.error
    assert "<svg" in shown.data.get("image/svg+xml", shown.data.get("text/html", ""))


def test_a_model_of_the_hub_is_fine_tuned(cell):
    cell("import flodl.hf as hf\nhf.write_tiny_model('tiny', head='seqcls', words=['good', 'bad'])")
    cell("model = hf.AutoModelForSequenceClassification.from_pretrained('tiny')")
    cell("tokenizer = hf.AutoTokenizer.from_pretrained('tiny')")
    cell(
        "def tune(model, batch):\n"
        "    return model(**batch).loss\n"
        "texts = ['good', 'bad', 'so good', 'so bad'] * 4\n"
        "rows = dict(tokenizer(texts, padding=True, return_tensors='pt'))\n"
        "rows['labels'] = torch.tensor([2, 0] * 8)"
    )
    shown = cell(
        "one = Trainer.builder(lambda device: model.to(device), torch.optim.AdamW, tune)\n"
        "one.dataset([{k: v[i] for k, v in rows.items()} for i in range(16)])\n"
        "folder = RunDirectory.create('tuned')\n"
        "one.batch_size(8).num_epochs(2).run_dir(folder).run().join()"
    )
    assert shown.error is None, shown.error
    assert "epoch 2 of 2" in shown.data["text/html"]


def test_an_error_of_the_data_set_is_the_users_own(cell):
    cell(
        "class Bad:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, row): return rows_of[row]"
    )
    shown = cell(
        "one = Trainer.builder(make_model, torch.optim.AdamW, train_step)\n"
        "one.dataset(Bad()).batch_size(8).num_epochs(1).run()"
    )
    assert shown.error is not None
    assert "rows_of" in shown.error[1]
    assert cell("trainer(1).run().join()").error is None, "the kernel goes on"


@pytest.mark.slow
def test_after_a_restart_of_the_kernel_the_run_goes_on(cell):
    cell("handle = trainer(1, 'again').run()")
    run = newest(cell, "again").name
    cell.restart()
    assert cell("handle").error[0] == "NameError"
    assert cell(FIRST).error is None
    shown = cell(f"handle = trainer(3, 'again').resume('again/{run}/last.fdl').run()")
    assert shown.error is None, shown.error
    assert len(losses(shown)) == 2
