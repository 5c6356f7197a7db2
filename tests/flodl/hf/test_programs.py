"""Programs for transformers and sentence-transformers run with only their import changed."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

from tests.flodl.hf.predict.reference import write

PROGRAMS = Path(__file__).parent / "programs"


def run(program, capsys, monkeypatch, *arguments, library=None):
    """What a program prints; with a library, after its import was changed to flodl's."""
    text = (PROGRAMS / program).read_text()
    if library is not None:
        assert text.count(f"from {library} import") == text.count(library + " import") == 1
        text = text.replace(f"from {library} import", "from flodl.hf import")
    monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
    capsys.readouterr()
    exec(compile(text, program, "exec"), {"__name__": "__main__"})
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def compare(ours, theirs, where="result"):
    """Equal words and numbers, and values within 1e-6 of each other."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            compare(value, theirs[name], name)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            compare(one, other, f"{where}[{number}]")
    elif isinstance(ours, float):
        assert math.isclose(ours, theirs, rel_tol=1e-5, abs_tol=2e-6), (where, ours, theirs)
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_training_loop_in_pytorch(tmp_path, capsys, monkeypatch, family):
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write(tmp_path / "base", family, "", **dropout)
    program = "text_classification.py"
    theirs = run(program, capsys, monkeypatch, tmp_path / "base", tmp_path / "theirs")
    ours = run(
        program,
        capsys,
        monkeypatch,
        tmp_path / "base",
        tmp_path / "ours",
        library="transformers",
    )
    assert sum(theirs["losses"][-3:]) < sum(theirs["losses"][:3])
    compare(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["cosine", "euclidean"])
def test_the_first_calls_of_sentence_transformers(tmp_path, capsys, monkeypatch, function):
    package = importlib.import_module("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    write(tmp_path / "model", "bert", "")
    transformer = modules.Transformer(
        str(tmp_path / "model"), processor_kwargs={"model_max_length": 20}
    )
    parts = [transformer, modules.Pooling(16, pooling_mode="mean")]
    if function == "cosine":
        parts.append(modules.Normalize())
    made = package.SentenceTransformer(
        modules=parts,
        device="cpu",
        prompts={"query": "the fox: ", "document": ""},
        similarity_fn_name=function,
    )
    made.save(str(tmp_path / "saved"))
    theirs = run("sentences.py", capsys, monkeypatch, tmp_path / "saved")
    ours = run(
        "sentences.py", capsys, monkeypatch, tmp_path / "saved", library="sentence_transformers"
    )
    assert theirs["kind"] == "ndarray"
    compare(ours, theirs)
