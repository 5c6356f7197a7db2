"""The Hugging Face tutorial as a reader types it, with a Hub on this machine.

The repositories have the names and the architectures of the real ones and are otherwise tiny: what
the page prints is what does not depend on the weights.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.flodl.hf.fake_hub import FakeHub
from tests.flodl.hf.predict.reference import write
from tests.flodl.hf.test_embed import layout

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/tutorials/huggingface.md"

NAMES = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
FEELINGS = ("sadness", "joy", "love", "anger", "fear", "surprise")
CLASSIFIER = "ForSequenceClassification"


def labels(names: tuple[str, ...]) -> dict[str, dict[int, str]]:
    return {"id2label": dict(enumerate(names))}


REPOSITORIES = {
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": (
        ("distilbert", CLASSIFIER),
        {**labels(("NEGATIVE", "POSITIVE")), "n_layers": 6},
    ),
    "dslim/bert-base-NER": (("bert", "ForTokenClassification"), labels(NAMES)),
    "deepset/roberta-base-squad2": (("roberta", "ForQuestionAnswering"), {}),
    "google-bert/bert-base-uncased": (("bert", "ForMaskedLM"), {"num_hidden_layers": 12}),
    "distilbert/distilbert-base-uncased": (("distilbert", "ForMaskedLM"), {"n_layers": 6}),
    "sentence-transformers/all-MiniLM-L6-v2": (
        ("bert", ""),
        {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6},
    ),
    "nateraw/bert-base-uncased-emotion": (("bert", CLASSIFIER), labels(FEELINGS)),
}
"""Name -> family and head, and more of the configuration."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the repositories hold."""
    folder = tmp_path_factory.mktemp("sources")
    for name, ((family, head), fields) in REPOSITORIES.items():
        write(folder / name, family, head, **fields)
    layout(
        folder / "sentence-transformers/all-MiniLM-L6-v2",
        pooling={"pooling_mode_mean_tokens": True},
        model={"max_seq_length": 128},
    )
    pickled = folder / "nateraw/bert-base-uncased-emotion"
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_runs_as_a_reader_types_it(sources: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(
        sources / "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        project / "my-classifier",
    )
    with FakeHub() as hub:
        for name in REPOSITORIES:
            hub.add_repo(name, sources / name, {"v1.0": sources / name})
        done = subprocess.run(
            [sys.executable, "-m", "tests.page_session", str(PAGE)],
            cwd=project,
            env={**hub.env(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=560,
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25
