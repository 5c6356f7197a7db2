"""`python -m flodl.hf`: what is refused, what fails, and where paths start."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf.__main__ import commands, main
from flodl.hf.auto import AutoModel
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.ready import anchored, source
from flodl.hf.reference import make_synthetic
from tests import fork_server
from tests.rows import each_row

CELLS = {cell.name: cell for cell in all_cells()}


@pytest.fixture(autouse=True)
def _no_project(monkeypatch):
    monkeypatch.delenv("FDL_PROJECT_ROOT", raising=False)
    monkeypatch.delenv("FDL_PLAN", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint of the reference."""
    folder = tmp_path_factory.mktemp("model")
    cell = CELLS["bert-qa"]
    make_synthetic(tiny_config(cell), HeadKind(cell.head), folder, cell.name)
    return folder


@pytest.fixture
def trained(model, tmp_path):
    """A checkpoint of a training."""
    AutoModel.from_pretrained_for_export(model).save_checkpoint(tmp_path / "m.fdl")
    return tmp_path / "m.fdl"


def refused(capsys, *words):
    """Check that a line is refused with the usage of its command; return the message."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert "Usage: " in told.err
    return told.err.partition("\n")[0].removeprefix("error: ")


def failed(capsys, *words):
    """Check that a command fails with one message; return it."""
    assert main(words) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "Traceback" not in told
    return told.removeprefix("error: ").rstrip("\n")


def test_the_commands_are_those_of_the_specified_line():
    assert list(commands()) == [
        "convert",
        "export",
        "verify-export",
        "verify-matrix",
        "info",
    ]
    assert all(commands().values())


@each_row("words", [[], ["--help"], ["-h"]])
def test_without_a_command_they_are_listed(capsys, words):
    assert main(words) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in commands())


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    assert main(["exprot"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: unknown command: exprot",
        "hint: did you mean `export`?",
        "Usage: python -m flodl.hf COMMAND [ARGS]",
        "see python -m flodl.hf --help",
    ]


@each_row("name", commands())
def test_every_command_tells_its_help_and_its_schema(capsys, name):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: ")
    with pytest.raises(SystemExit) as ended:
        main([name, "--fdl-schema"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["description"]


@pytest.mark.case("hf", 43)
@each_row(
    ("words", "told"),
    [
        (["--out", "o"], "--hub or --checkpoint is missing"),
        (["--hub", "a/b", "--checkpoint", "m.fdl", "--out", "o"], "exclude each other"),
        (["--hub", "a/b"], "--out is missing"),
        (["--hub", "a/b", "--out", "o", "--config", "c.json"], "--config belongs to --checkpoint"),
        (
            ["--hub", "a/b", "--out", "o", "--preserve-source-config"],
            "--preserve-source-config belongs to --checkpoint",
        ),
        (["--checkpoint", "m.fdl", "--out", "o", "--head", "qa"], "--head belongs to --hub"),
        (["--checkpoint", "m.fdl", "--out", "o", "--head", "auto"], "--head belongs to --hub"),
        (["--checkpoint", "m.fdl", "--out", "o", "--revision", "x"], "--revision belongs to --hub"),
        (["--hub", "a/b", "--out", "o", "--head", "lm"], "--head"),
        (["--hub", "a/b", "--out", "o", "--dtype", "int8"], "--dtype"),
    ],
)
def test_an_export_that_contradicts_itself_is_refused(capsys, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    assert told in refused(capsys, "export", *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.case("hf", 43)
@each_row(
    ("words", "told"),
    [
        (["verify-export"], "directory"),
        (["verify-export", "d", "--hub-source", "a", "--no-hub-source"], "exclude each other"),
        (["verify-matrix", "--families", "bert,gpt2"], "gpt2 is not one of bert, roberta"),
        (["verify-matrix", "--heads", "lm"], "lm is not one of base"),
        (["convert"], "src"),
        (["convert", "a", "b"], "unexpected argument `b`"),
        (["info", "a", "--force"], "unknown option `--force`"),
    ],
)
def test_other_lines_that_make_no_sense_are_refused_too(capsys, words, told):
    assert told in refused(capsys, *words)


@pytest.mark.case("hf", 43)
@pytest.mark.parametrize("there", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("way", ["hub", "checkpoint"])
def test_an_export_that_is_there_stays_as_it_is_without_force(
    capsys, tmp_path, model, trained, there, way
):
    out = tmp_path / "out"
    out.mkdir()
    (out / there).write_bytes(b"mine")
    src = {"hub": model, "checkpoint": trained}[way]
    words = ["export", f"--{way}", str(src), "--out", str(out)]
    message = failed(capsys, *words)
    assert there in message
    assert "--force" in message
    assert [(file.name, file.read_bytes()) for file in out.iterdir()] == [(there, b"mine")]
    assert main([*words, "--force"]) == 0
    assert {file.name for file in out.iterdir()} == {"config.json", "model.safetensors"}
    assert (out / there).read_bytes() != b"mine"


def test_what_cannot_be_done_fails_with_one_message(capsys, tmp_path, model):
    assert "nowhere" in failed(capsys, "info", "./nowhere")
    assert "nowhere" in failed(capsys, "convert", str(tmp_path / "nowhere"))
    assert "nowhere.fdl" in failed(
        capsys, "export", "--checkpoint", str(tmp_path / "nowhere.fdl"), "--out", str(tmp_path)
    )
    assert "remove --revision" in failed(capsys, "info", str(model), "--revision", "main")
    assert "there is no directory '~nobody" in failed(capsys, "info", "~nobody-at-all/x")


def test_a_directory_that_is_no_export_fails(capsys, tmp_path):
    assert main(["verify-export", str(tmp_path), "--no-hub-source"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_relative_paths_start_at_the_project(capsys, tmp_path, monkeypatch, model):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(root))
    (root / "model").symlink_to(model)
    assert main(["export", "--hub", "model", "--out", "out/deep"]) == 0
    assert (root / "out/deep/config.json").exists()
    torch.save({"a": torch.ones(1)}, root / "w.bin")
    assert main(["convert", "w.bin", "--out", "converted"]) == 0
    assert (root / "converted/model.safetensors").exists()
    assert main(["info", "out/deep"]) == 0
    assert f"checkpoint  {root}/out/deep" in capsys.readouterr().out
    assert list(elsewhere.iterdir()) == []


def test_a_name_stays_a_repository_unless_such_a_path_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    assert source("owner/name") == "owner/name"
    assert source("./name") == str(tmp_path / "name")
    (tmp_path / "owner/name").mkdir(parents=True)
    assert source("owner/name") == str(tmp_path / "owner/name")
    assert anchored("/abs") == anchored("/abs").absolute()
    with pytest.raises(ValueError, match="remove --revision"):
        source("owner/name", "main")
    assert source("other/name", "main") == "other/name"


def test_a_size_that_is_none_is_refused_before_anything_is_written(capsys, tmp_path, model):
    words = ("export", "--hub", str(model), "--out", str(tmp_path / "o"), "--max-shard-size", "x")
    assert "'x' is not a file size" in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


_INTO_A_CLOSED_PIPE = """
import os, runpy, sys

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
# Without a buffer it would be found out at once, and not when the program ends.
sys.stdout = os.fdopen(1, "w", closefd=False)
runpy.run_module("flodl.hf", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("words", [["info"], ["--help"]])
def test_a_reader_that_has_gone_is_no_failure(model, words):
    words = [*words, *([str(model)] if words == ["info"] else [])]
    done = fork_server.python("-c", _INTO_A_CLOSED_PIPE, *words, torch=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_checkpoint_says_does_not_control_the_terminal(capsys, tmp_path, model):
    folder = shutil.copytree(model, tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    tensors["x\x1b[2J\r"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shown = "x\\x1b[2J\\r"
    assert main(["info", str(folder)]) == 0
    assert f"    {shown}\n" in capsys.readouterr().out
    assert main(["verify-export", str(folder), "--structural"]) == 1
    assert f"    {shown}\n" in capsys.readouterr().out
    assert main(["export", "--hub", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert f"left out: {shown}\n" in capsys.readouterr().err
    tensors.pop("qa_outputs.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert shown in failed(capsys, "export", "--hub", str(folder), "--out", str(tmp_path / "new"))
