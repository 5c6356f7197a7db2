"""The porting guides: both sides of each page run, and end with the same weights."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flodl
from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Callback
from tests.rows import each_row
from tests.test_guides import BLOCK

FOLDER = Path(__file__).parent.parent / "docs/porting"
SKILL = Path(__file__).parent.parent / "fdl/scaffold/skill/data/port"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
ROUNDING = {"transformers": 1e-6}
"""Most that a weight may differ, of the pages that do not promise the same bits."""


def programs(page: Path) -> dict[str, str]:
    """Name -> text of the files of a page."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return {name: text for language, name, text in blocks if language == "python" and name}


def run(page: Path, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    """The names that a program of a page leaves, with ``shared`` beside it."""
    files = programs(page)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "shared.py").write_text(files["shared.py"])
    sys.modules.pop("shared", None)
    left: dict[str, object] = {"__name__": "port"}
    try:
        exec(compile(files[name], f"{page.name}: {name}", "exec", dont_inherit=True), left)
    finally:
        sys.modules.pop("shared", None)
    return left


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_our_side_learns(page, monkeypatch, tmp_path):
    left = run(page, "ours.py", monkeypatch, tmp_path)
    x, y = left["make_data"](256, 2)
    outputs = left["model"](x)
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    assert (logits.argmax(1) == y).float().mean() > 0.9


COMPARE = """\
import runpy
import sys

import torch

theirs = runpy.run_path("theirs.py")["model"].state_dict()
ours = runpy.run_path("ours.py")["model"].state_dict()
assert list(theirs) == list(ours)
print("largest difference", max((theirs[name] - ours[name]).abs().max().item() for name in ours))
"""


def compared(page: Path, folder: Path) -> float:
    for name, text in programs(page).items():
        (folder / name).write_text(text)
    (folder / "compare.py").write_text(COMPARE)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "compare.py"]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.rpartition(" ")[2])


def test_plain_pytorch_and_our_side_end_with_the_same_weights(tmp_path, monkeypatch):
    page = FOLDER / "pytorch.md"
    theirs = run(page, "theirs.py", monkeypatch, tmp_path)["model"]
    ours = run(page, "ours.py", monkeypatch, tmp_path)["model"]
    assert all(map(torch.equal, theirs.state_dict().values(), ours.state_dict().values()))
    own = run(page, "own_loop.py", monkeypatch, tmp_path)["setup"]
    assert not torch.equal(own.model[0].weight, theirs[0].weight)  # it shuffles


def test_a_gan_with_two_optimizers_is_resumed_to_the_bit(tmp_path, monkeypatch):
    page = FOLDER / "pytorch.md"
    left = run(page, "gan.py", monkeypatch, tmp_path)
    whole, resumed = left["whole"], left["resumed"]
    assert told(whole) == told(resumed)
    # The page warns: what is not registered is lost.
    lines = programs(page)["gan.py"].splitlines()
    text = "\n".join(line for line in lines if ".state(" not in line)
    lost: dict[str, object] = {"__name__": "lost"}
    exec(compile(text, "lost.py", "exec", dont_inherit=True), lost)
    assert told(lost["whole"]) == told(whole)
    assert told(lost["resumed"]) != told(whole)


def told(gan: object) -> list[object]:
    """All numbers of a GAN and of its second optimizer."""
    modules = [*gan.generator.parameters(), *gan.critic.parameters()]
    moments = [one["exp_avg_sq"] for one in gan.second.state.values()]
    return [tensor.tolist() for tensor in (*modules, *moments)]


@pytest.mark.slow  # each imports a library that takes seconds
@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_both_sides_end_with_the_same_weights(name, tmp_path):
    assert compared(FOLDER / f"{name}.md", tmp_path) <= ROUNDING.get(name, 0.0)


@pytest.mark.slow  # imports Lightning
def test_a_lightning_module_trains_unchanged(tmp_path):
    page = FOLDER / "lightning.md"
    files = programs(page)
    (kept,) = (
        text
        for language, name, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if language == "python" and not name
    )
    (tmp_path / "shared.py").write_text(files["shared.py"])
    checked = "print(trained.poll_metrics()[-1].avg_loss)\n"
    program = files["theirs.py"] + "from flodl import Trainer\n" + kept + checked
    (tmp_path / "kept.py").write_text(program)
    done = subprocess.run([sys.executable, "kept.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 0.3


# The tables


def ours_of(page: Path) -> list[str]:
    """The right cells of a page's tables."""
    cells = re.findall(
        r"^ *\|.*(?<!\\)\| (.*?) \|$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [cell for cell in cells if cell not in ("flodl", "---")]


def methods(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"(?<![\w)])\.(\w+)\(", cell)}


def unknown(cells: list[str]) -> set[str]:
    """What the cells name and flodl does not have: methods, options of methods, classes."""
    wrong = methods(cells) - {name for name in dir(TrainerBuilder) if name[0] != "_"}
    for cell in cells:
        for code in re.findall(r"`(\.\w+\(.*?\)|[A-Z]\w+|record_scalar\(.*?\))`", cell):
            if code[0].isupper():
                wrong |= {code} - {*flodl.__all__, *__import__("fdl").__all__}
                continue
            wrong |= set(options(code))
    return wrong


def options(code: str) -> list[str]:
    """Keyword arguments of a chain of calls that the method, or the DataLoader, does not have."""
    tree = ast.parse("x" + code.replace("…", "..."), mode="eval")
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        method = (
            flodl.DataLoader if name == "loader_options" else getattr(TrainerBuilder, name, None)
        )
        if method is not None and name != "x":
            known = inspect.signature(method).parameters
            found += [f"{name}({one.arg}=)" for one in call.keywords if one.arg not in known]
    return found


TEXTS = [*PAGES, SKILL / "guide.md", SKILL / "instructions.md"]


@each_row("page", TEXTS, ids=lambda path: path.stem)
def test_every_name_in_a_table_exists(page):
    cells = ours_of(page)
    assert unknown(cells) == set()
    assert len(methods(cells)) >= 5


def test_every_page_and_the_skill_name_what_people_look_for():
    wanted = {"accumulate", "precision", "ema", "early_stop", "keep_best", "resume"}
    for page in TEXTS:
        assert wanted <= methods(ours_of(page)), page.name
        text = page.read_text(encoding="utf-8")
        assert "--ranks" in text, page.name


@each_row(
    "cell",
    [
        "`.acumulate(4)`",
        "`.keep_best('x', higher=True)`",
        "`.loader_options(num_workers=1)`",
        "`Trainr`",
    ],
)
def test_a_wrong_name_is_found(cell):
    assert unknown([cell])


def test_the_hooks_that_are_named_exist():
    for page in TEXTS:
        text = page.read_text(encoding="utf-8")
        hooks = set(re.findall(r"`(on_\w+)`", text))
        assert hooks <= set(dir(Callback)), page.name


# What the other side is called

PACKAGES = {
    "accelerate": ["accelerate"],
    "lightning": ["pytorch_lightning"],
    "pytorch": [
        "torch/optim", "torch/nn", "torch/utils/data", "torch/amp", "torch/serialization.py",
    ],
    "transformers": [
        "transformers/trainer.py", "transformers/training_args.py", "transformers/hf_argparser.py",
        "transformers/trainer_callback.py", "transformers/modeling_utils.py",
    ],
}  # fmt: skip
OF_NOBODY = {
    "True",
    "False",
    "train",
    "py",
    "launch",
    "config",
    "run",
    "torchrun",
    "loader",
    "data",
}
"""Words of code that are values, commands or the reader's own names."""


def theirs_of(page: Path) -> set[str]:
    """The names in the left cells of a page's tables, without what stands in quotes."""
    cells = re.findall(r"^\| (.*?) (?<!\\)\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    codes = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return {
        name
        for code in codes
        for name in re.findall(r"[A-Za-z_]\w{3,}", re.sub(r"[\"'].*?[\"']", "", code))
    } - OF_NOBODY


@pytest.mark.slow  # reads whole packages
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_names_of_the_other_side_exist(page):
    site = Path(torch.__file__).parent.parent
    text = ""
    for place in PACKAGES[page.stem]:
        path = site / place
        files = [path] if path.is_file() else path.rglob("*.py")
        text += "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    known = set(re.findall(r"[A-Za-z_]\w+", text))
    assert len(theirs_of(page)) > 15
    assert theirs_of(page) - known == set()
