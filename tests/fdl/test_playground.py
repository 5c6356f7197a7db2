"""The playground that ``fdl add`` writes, run on checkpoints that lie in a folder."""

import os
import re
import runpy
import subprocess

import pytest
import yaml

from tests import fork_server
from tests.conftest import typed_in
from tests.fdl.terminal import Terminal
from tests.flodl.hf.fake_hub import FakeHub

PYPROJECT = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["flodl"]\n'
PICKLED = "cardiffnlp/twitter-roberta-base-sentiment-latest"
USUAL = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
TINY = "is a tiny model with random weights: its answers mean nothing"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
LABELS = {0: "calm", 1: "glad", 2: "sad", 3: "cross"}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 256,
    # Far apart, so that rounding tells the labels from each other.
    "initializer_range": 0.5,
}


@pytest.fixture
def fdl(tmp_path):
    """``fdl`` where each `python` is a fork that has imported torch: all programs here need it."""
    return typed_in(tmp_path, fork_server.torch_on_path(os.environ))


@pytest.fixture(autouse=True)
def playground(fdl, project):
    """The folder of a project that has just got one."""
    folder = project({"pyproject.toml": PYPROJECT, "fdl.yml": "description: mine\n"})
    done = fdl("add", "hf", "--playground")
    assert done.exit == 0, done.err
    return folder


def checkpoint(folder, head):
    """Write a tiny BERT of the reference, with a vocabulary of letters; returns both parts."""
    # Here, because collecting the tests would otherwise take seconds longer.
    import torch
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?'"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=256)
    torch.manual_seed(7)
    more = {"id2label": LABELS, "label2id": {name: place for place, name in LABELS.items()}}
    config = transformers.BertConfig(
        vocab_size=len(vocab), **SIZES, **(more if head in ("Sequence", "Token") else {})
    )
    kinds = {
        "Sequence": transformers.BertForSequenceClassification,
        "Token": transformers.BertForTokenClassification,
        "Answer": transformers.BertForQuestionAnswering,
        "Mask": transformers.BertForMaskedLM,
    }
    model = kinds[head](config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def expected(model, tokenizer, text):
    """The labels of a text, the likeliest first, as the reference sees them."""
    import torch

    with torch.no_grad():
        scores = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    return [(LABELS[int(place)], scores[place].item()) for place in scores.argsort(descending=True)]


@pytest.mark.case("hf", 48)
def test_classify_labels_three_sentences_with_the_model_of_a_folder(fdl, playground):
    model, tokenizer = checkpoint(playground / "model", "Sequence")
    done = fdl("flodl-hf", "classify", "--", "model")
    assert done.exit == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 9
    for text, best, others in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        first, *rest = expected(model, tokenizer, text)
        assert best == f"  {first[0]} {first[1]:.1%}"
        told = re.fullmatch(r"  then (\w+) ([\d.]+)%, (\w+) ([\d.]+)%", others)
        assert told is not None, others
        assert [told[1], told[3]] == [rest[0][0], rest[1][0]]
        assert float(told[2]) == pytest.approx(100 * rest[0][1], abs=0.06)
        assert float(told[4]) == pytest.approx(100 * rest[1][1], abs=0.06)
    inside = fdl("bert", "--", str(playground / "model"), cwd="flodl-hf")
    assert (inside.exit, inside.out) == (0, done.out)


@pytest.mark.parametrize(
    ("command", "head", "title", "line"),
    [
        ("ner", "Token", "Ada Lovelace met", r"  (calm|glad|sad|cross) [\d.]+%  \S.*"),
        ("qa", "Answer", "The lighthouse of", r"(Where|When) .*\?|  .* \([\d.]+%\)"),
        ("fill-mask", "Mask", "The ship sailed across the [MASK].", r"  [\d.]+%  \S+"),
    ],
)
def test_the_other_tasks_run_too(fdl, playground, command, head, title, line):
    checkpoint(playground / "model", head)
    done = fdl("flodl-hf", command, "--", "model")
    assert done.exit == 0, done.err
    first, *lines = done.out.splitlines()
    assert first.startswith(title)
    names = [one for one in lines if one.startswith("The Louvre")]
    assert len(names) == (command == "ner")
    assert all(re.fullmatch(line, one) for one in lines if one not in names), lines
    assert len(lines) == {"qa": 4, "fill-mask": 5}.get(command, len(lines)) > 2


def test_a_folder_of_pickles_names_the_command_to_convert_it(fdl, playground):
    checkpoint(playground / "model", "Sequence")
    (playground / "model/model.safetensors").rename(playground / "model/pytorch_model.bin")
    done = fdl("flodl-hf", "classify", "--", "model")
    assert done.exit == 1
    assert done.err.startswith("error: ")
    assert "fdl flodl-hf convert" in done.err


def plain(text):
    """What a terminal showed, as one line without the codes for its cursor."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).split())


def of_hub(variables):
    """The variables that lead to a Hub on this machine, with a cache of its own."""
    return {one: variables[one] for one in variables if one.startswith(("HF_", "NO_PROXY"))}


def pickled(folder):
    """Keep the weights of a checkpoint only as a pickle."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    ("words", "cwd", "usual"),
    [
        (["flodl-hf", "roberta-sentiment"], ".", PICKLED),
        pytest.param(["roberta-sentiment"], "flodl-hf", PICKLED, marks=pytest.mark.slow),
        pytest.param(
            *(["flodl-hf", "bert"], ".", "nateraw/bert-base-uncased-emotion"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(["flodl-hf", "example", "auto-classify"], ".", PICKLED), marks=pytest.mark.slow
        ),
    ],
    ids=["root", "inside", "bert", "example"],
)
@pytest.mark.slow
def test_where_a_model_is_a_pickle_the_command_that_is_named_leads_on(
    fdl, playground, words, cwd, usual
):
    checkpoint(playground / "model", "Sequence")
    with FakeHub() as hub:
        hub.add_repo(usual, pickled(playground / "model"))
        named = hub.env(playground)
        env = of_hub(named)
        refused = fdl(*words, cwd=cwd, env=env)
        assert (refused.exit, refused.out) == (1, "")
        (command,) = re.findall(r"(?:^ +|once: )(fdl .+)$", refused.err, re.MULTILINE)
        assert command == f"fdl flodl-hf convert {usual}"
        converted = fdl(*command.split()[1:], cwd=cwd, env=env)
        assert converted.exit == 0, converted.err
        assert converted.err.startswith(f"downloading {usual}: 1 file, ")
        done = fdl(*words, cwd=cwd, env=env)
    assert done.exit == 0, done.err
    assert set(re.findall("|".join(LABELS.values()), done.out)) == set(LABELS.values())


@pytest.mark.slow
def test_on_a_terminal_a_pickle_is_converted_after_a_question(playground):
    checkpoint(playground / "model", "Sequence")
    with FakeHub() as hub:
        hub.add_repo(PICKLED, pickled(playground / "model"))
        env = of_hub(hub.env(playground))
        for answer, code in (("n\n", 1), ("\n", 0)):
            typed = ("flodl-hf", "roberta-sentiment")
            with Terminal(*typed, cwd=playground, env=env) as terminal:
                terminal.read_until("Convert them once? [Y/n] ")
                assert f"{PICKLED} has its weights only as a pickle. This downloads " in plain(
                    terminal.text
                )
                asked = len(hub.bodies())
                terminal.press(answer)
                assert terminal.finish() == code, terminal.text
            assert (len(hub.bodies()) > asked) is (code == 0)
        assert "calm" in terminal.text
        assert "fdl flodl-hf convert" not in terminal.text


@pytest.mark.slow
def test_the_default_model_needs_no_conversion_and_its_size_is_told_first(fdl, playground):
    model = write_tiny(playground / "model", "seqcls")
    with FakeHub() as hub:
        hub.add_repo(USUAL, model)
        done = fdl("flodl-hf", "classify", env=of_hub(hub.env(playground)))
    assert done.exit == 0, done.err
    (told,) = done.err.splitlines()
    assert told.startswith(f"downloading {USUAL}: 3 files, ")
    assert "neutral" in done.out


# Without a network ----------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_terminal_the_command_with_a_tiny_model_is_named(fdl):
    done = fdl("flodl-hf", "classify", env=OFFLINE)
    assert (done.exit, done.out) == (1, "")
    assert done.err.endswith("random weights:\n    fdl flodl-hf classify -- tiny\n")


@pytest.mark.slow
def test_on_a_terminal_a_tiny_model_is_offered(playground):
    with Terminal("flodl-hf", "classify", cwd=playground, env=OFFLINE) as terminal:
        terminal.read_until("Use a tiny model with random weights instead? ")
        terminal.press("\n")
        assert terminal.finish() == 0, terminal.text
    assert TINY in plain(terminal.text)
    assert "The meeting has moved" in terminal.text
    assert (playground / "flodl-hf/tiny/bert-seqcls/model.safetensors").is_file()


@pytest.mark.case("hf", 48)
def test_a_tiny_model_is_fine_tuned_exported_and_checked(fdl, capsys):
    done = fdl("flodl-hf", "finetune", "--", "tiny", env=OFFLINE)
    assert done.exit == 0, done.err
    assert TINY in done.err
    losses = re.findall(r"^step \d: loss (\S+)$", done.out, re.MULTILINE)
    assert len(set(losses)) == 5
    # The two commands that it names work as they stand; the second one without transformers here.
    export, verify = (
        line.split()[2:] for line in done.out.splitlines() if line.startswith("    fdl ")
    )
    assert (export[0], verify[0], verify[-1]) == ("export", "verify-export", "--no-hub-source")
    from flodl.hf.__main__ import main

    assert main(export) == 0, capsys.readouterr().err
    assert main([*verify[:-1], "--structural"]) == 0
    assert "PASS  reload" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_can_be_tried_with_a_tiny_model(fdl, playground):
    """The journey of a newcomer without a network: each command that the folder has."""
    commands = yaml.safe_load((playground / "flodl-hf/fdl.yml").read_text())["commands"]
    tasks = [name for name in commands if name not in ("build", "check", "shell")]
    for name in tasks:
        done = fdl("flodl-hf", name, "--", "tiny", env=OFFLINE)
        assert done.exit == 0, done.err
        assert TINY in done.err
        assert done.out
    folder = "flodl-hf/finetuned"
    for words in (
        ["export", "--checkpoint", f"{folder}/model.fdl", "--out", f"{folder}/export"],
        ["verify-export", f"{folder}/export", "--structural"],
        ["verify-export", f"{folder}/export", "--no-hub-source"],
        ["export", "--hub", "flodl-hf/tiny/bert-mlm", "--out", f"{folder}/mlm"],
        ["verify-export", f"{folder}/mlm", "--hub-source", "flodl-hf/tiny/bert-mlm"],
        ["info", "flodl-hf/tiny/bert-qa"],
    ):
        done = fdl("flodl-hf", *words, env=OFFLINE)
        assert done.exit == 0, (words, done.err)
    assert git_sees(playground) == set()


def git_sees(project):
    """What the commands made and git would add."""
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "flodl-hf"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    written = {".gitignore", "README.md", "fdl.yml", "main.py", "pyproject.toml"}
    return {name.removeprefix("flodl-hf/") for name in listed} - written


def write_tiny(folder, head):
    """A tiny classifier, made as the playground makes it."""
    from flodl.hf import HeadKind, write_tiny_model

    return write_tiny_model(folder, head=HeadKind(head))


def test_the_readme_names_the_model_of_every_command(playground):
    text = (playground / "flodl-hf/README.md").read_text()
    told = dict(re.findall(r"^\| `([\w-]+)` \| `([\w./-]+)`", text, re.MULTILINE))
    program = runpy.run_path(str(playground / "flodl-hf/main.py"))
    commands = yaml.safe_load((playground / "flodl-hf/fdl.yml").read_text())["commands"]
    expected = dict(program["MODELS"])
    for name, command in commands.items():
        usual = re.search(r"--usual (\S+)", command["run"])
        expected |= {name: usual[1]} if usual else {}
    assert told == expected
    assert f"fdl flodl-hf convert {expected['bert']}" in text
    typed = [
        line.partition("#")[0].strip() for line in text.splitlines() if line.startswith("    fdl ")
    ]
    assert typed[:2] == ["fdl flodl-hf build", "fdl flodl-hf classify"]


def test_check_tells_that_everything_is_there(fdl):
    done = fdl("flodl-hf", "check")
    assert (done.exit, done.out) == (0, "all packages are installed\n")
