"""What each extra gives, tried as if no more than that were installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from flodl.hf.head_kind import HeadKind
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from tests import fork_server
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids
from tests.flodl.hf.profiles import without, without_sockets

HUB_PACKAGES = ("huggingface_hub", "requests", "httpx", "httpx2", "hf_xet", "fsspec")
REFERENCES = ("transformers", "peft", "sentence_transformers", "accelerate")
VISION = without(*REFERENCES, "tokenizers")
OFFLINE = without_sockets() + without(*HUB_PACKAGES, *REFERENCES, "tokenizers")
CELLS = [(family, kind) for family in FAMILIES for kind in HeadKind]
IDS, MASK = some_ids()


def save_cell(folder: Path, family: str, kind: HeadKind) -> None:
    """Write a small checkpoint, and beside it what its model gives for ``IDS``."""
    folder.mkdir(parents=True)
    graph = small_model(family, kind)
    save_safetensors_file_from_graph(graph, folder / "model.safetensors")
    (folder / "config.json").write_text(graph.source_config)
    with torch.inference_mode():
        outputs = graph(IDS, MASK)
    (folder / "outputs.json").write_text(json.dumps(outputs.tolist()))


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return fork_server.python("-c", program, str(folder), torch=True, abrupt=True)


_LOAD_CELLS = """
import json, sys
from pathlib import Path
import torch
import flodl.hf
from flodl.hf import AutoModel, HeadKind

AUTO = {
    HeadKind.SEQCLS: flodl.hf.AutoModelForSequenceClassification,
    HeadKind.TOKCLS: flodl.hf.AutoModelForTokenClassification,
    HeadKind.QA: flodl.hf.AutoModelForQuestionAnswering,
    HeadKind.MLM: flodl.hf.AutoModelForMaskedLM,
}
root = Path(sys.argv[1])
ids, mask = (torch.tensor(rows) for rows in json.loads((root / "inputs.json").read_text()))
for folder in sorted(root.glob("*/*")):
    kind = HeadKind(folder.name)
    if kind is HeadKind.BASE:
        graph = AutoModel.from_pretrained(folder).graph
    else:
        graph = AUTO[kind].from_pretrained(folder).graph
    with torch.inference_mode():
        outputs = graph(ids, mask)
    torch.testing.assert_close(
        outputs, torch.tensor(json.loads((folder / "outputs.json").read_text())), atol=1e-6, rtol=0
    )
    print(folder.parent.name, kind)
"""


@pytest.mark.case("hf", 27)
def test_the_offline_profile_loads_every_model_from_a_directory(tmp_path):
    for family, kind in CELLS:
        save_cell(tmp_path / family / kind, family, kind)
    (tmp_path / "inputs.json").write_text(json.dumps([IDS.tolist(), MASK.tolist()]))
    done = run(OFFLINE + _LOAD_CELLS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == sorted(f"{family} {kind}" for family, kind in CELLS)
    assert len(CELLS) == 35


@pytest.mark.case("hf", 27)
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (OFFLINE + "import huggingface_hub", "No module named 'huggingface_hub'"),
        (OFFLINE + "import socket; socket.create_connection(('127.0.0.1', 9))", "no socket may"),
    ],
    ids=["package", "socket"],
)
def test_what_the_offline_profile_lacks_is_really_missing(tmp_path, program, said):
    done = run(program, tmp_path)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("profile", "call", "package"),
    [
        (OFFLINE, "AutoModel.from_pretrained('owner/name')", "huggingface_hub"),
        (OFFLINE, "AutoConfig.from_pretrained('owner/name')", "huggingface_hub"),
        (VISION, "PreTrainedTokenizerFast.from_pretrained(sys.argv[1])", "tokenizers"),
    ],
)
def test_what_a_profile_lacks_is_missed_by_the_extra_that_has_it(tmp_path, profile, call, package):
    (tmp_path / "tokenizer.json").write_text("{}")
    names = "AutoConfig, AutoModel, PreTrainedTokenizerFast"
    program = f"{profile}import sys\nfrom flodl.hf import {names}\n{call}"
    done = run(program, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"flodl.hf.errors.MissingDependencyError: the package {package} is not installed: "
        'run pip install "flodl[hf]"'
    )


_WITHOUT_TOKENIZERS = """
import sys
from pathlib import Path
import torch
from flodl.hf import AutoModel, BatchEncoding, SentenceTransformer
from flodl.hf.errors import MissingDependencyError
import flodl.hf

def missed(call):
    try:
        call()
    except MissingDependencyError as error:
        return str(error)
    raise AssertionError("nothing was missed")

CALLS = {
    "seqcls": ("SequenceClassification", {"predict": [["a b"]]}),
    "tokcls": ("TokenClassification", {"predict": [["a b"]]}),
    "qa": ("QuestionAnswering", {"answer": ["a ?", "a b"], "answer_batch": [[("a ?", "a b")]]}),
    "mlm": ("MaskedLM", {"fill_mask": ["a [MASK]"]}),
}
root = Path(sys.argv[1])
enc = BatchEncoding({"input_ids": torch.tensor([[5, 6, 7]])})
for folder, (suffix, calls) in CALLS.items():
    head = getattr(flodl.hf, f"AutoModelFor{suffix}").from_pretrained(root / folder)
    assert head.tokenizer is None
    with torch.inference_mode():
        assert head.forward_encoded(enc).isfinite().all()
    assert head.save_pretrained(root / f"saved-{folder}")
    for name, arguments in calls.items():
        print(name, missed(lambda: getattr(head, name)(*arguments)))
AutoModel.from_pretrained(root / "base")
print("encode", missed(lambda: SentenceTransformer(root / "base").encode(["a b"])))
"""


@pytest.mark.parametrize("profile", [VISION, OFFLINE], ids=["vision", "offline"])
def test_without_tokenizers_models_work_and_text_names_the_extra(tmp_path, profile):
    for kind in HeadKind:
        save_cell(tmp_path / kind, "bert", kind)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "?"]
        (tmp_path / kind / "vocab.txt").write_text("\n".join(words))
    done = run(profile + _WITHOUT_TOKENIZERS, tmp_path)
    assert done.returncode == 0, done.stderr
    said = 'the package tokenizers is not installed: run pip install "flodl[hf]"'
    names = ["predict", "predict", "answer", "answer_batch", "fill_mask", "encode"]
    assert done.stdout.splitlines() == [f"{name} {said}" for name in names]
    # Opening a model says once that there will be no text.
    assert done.stderr.splitlines() == [f"flodl: no tokenizer for this model: {said}"] * 4


_IMPORT = """
import sys
import torch
before = set(sys.modules)
import flodl.hf
{more}
print(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} & {names!r}))
"""
_HEAVY = {"safetensors", "huggingface_hub", "tokenizers", *REFERENCES}


@pytest.mark.parametrize(
    "more",
    [
        "",
        "from flodl.hf import *",
        "from flodl.hf.hub import locate; locate(sys.argv[1]).file('config.json')",
        "import flodl.hf.hub",
    ],
    ids=["package", "names", "directory", "hub"],
)
@pytest.mark.case("hf", 49)
def test_importing_brings_none_of_the_packages_of_the_extras(tmp_path, more):
    program = fork_server.FORGET + _IMPORT.format(more=more, names=_HEAVY)
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


_LOADED = """
import sys
from flodl.hf import {name}
print(sorted(
    name for name in sys.modules
    if name.startswith(("flodl.checkpoint", "flodl.graph.builder", "flodl.hf.build", "flodl.train"))
))
"""


@pytest.mark.parametrize("name", ["AutoTokenizer", "AutoConfig", "BatchEncoding"])
def test_a_tokenizer_or_a_configuration_loads_no_code_that_builds_models(tmp_path, name):
    done = run(fork_server.FORGET + _LOADED.format(name=name), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
