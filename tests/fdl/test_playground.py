"""The playground that ``fdl add`` writes, run on checkpoints that lie in a folder."""

import os
import re

import pytest

from tests import fork_server
from tests.conftest import typed_in
from tests.flodl.hf.fake_hub import FakeHub

PYPROJECT = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["flodl"]\n'
USUAL = "cardiffnlp/twitter-roberta-base-sentiment-latest"
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
        (["flodl-hf", "classify"], ".", USUAL),
        pytest.param(["classify"], "flodl-hf", USUAL, marks=pytest.mark.slow),
        pytest.param(["flodl-hf", "roberta-sentiment"], ".", USUAL, marks=pytest.mark.slow),
        pytest.param(
            *(["flodl-hf", "bert"], ".", "nateraw/bert-base-uncased-emotion"),
            marks=pytest.mark.slow,
        ),
        pytest.param(["flodl-hf", "example", "auto-classify"], ".", USUAL, marks=pytest.mark.slow),
    ],
    ids=["root", "inside", "roberta", "bert", "example"],
)
def test_where_the_usual_model_is_a_pickle_the_command_that_is_named_leads_on(
    fdl, playground, words, cwd, usual
):
    checkpoint(playground / "model", "Sequence")
    with FakeHub() as hub:
        hub.add_repo(usual, pickled(playground / "model"))
        named = hub.env(playground)
        env = {name: named[name] for name in named if name.startswith(("HF_", "NO_PROXY"))}
        refused = fdl(*words, cwd=cwd, env=env)
        assert (refused.exit, refused.out) == (1, "")
        (command,) = re.findall(r"(?:^ +|once: )(fdl .+)$", refused.err, re.MULTILINE)
        assert command == f"fdl flodl-hf convert {usual}"
        converted = fdl(*command.split()[1:], cwd=cwd, env=env)
        assert converted.exit == 0, converted.err
        done = fdl(*words, cwd=cwd, env=env)
    assert done.exit == 0, done.err
    assert set(re.findall("|".join(LABELS.values()), done.out)) == set(LABELS.values())


def test_the_readme_says_to_convert_the_usual_model_before_it_is_used(playground):
    typed = [
        line.partition("#")[0].strip()
        for line in (playground / "flodl-hf/README.md").read_text().splitlines()
        if line.startswith("    fdl ")
    ]
    assert typed[:3] == [
        "fdl flodl-hf build",
        f"fdl flodl-hf convert {USUAL}",
        "fdl flodl-hf classify",
    ]


def test_check_tells_that_everything_is_there(fdl):
    done = fdl("flodl-hf", "check")
    assert (done.exit, done.out) == (0, "all packages are installed\n")
