"""Texts that are longer than a model takes, given to everything that takes texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import flodl.hf
from flodl.hf.head_kind import HeadKind
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from tests.flodl.hf.models_material import VOCABULARY, small_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
SHORT, LONG = "a [MASK]", "[MASK]" + " b" * 50
BEFORE = 2100
"""Texts before the long one: more than are encoded at a time."""

METHODS = {
    "seqcls": ("AutoModelForSequenceClassification", "predict"),
    "tokcls": ("AutoModelForTokenClassification", "predict"),
    "mlm": ("AutoModelForMaskedLM", "fill_mask_batch"),
    "base": ("SentenceTransformer", "encode"),
}


def method_of(folder: Path, kind: str):
    """What takes a list of texts, of a small model with 40 positions."""
    graph = small_model("bert", HeadKind(kind))
    save_safetensors_file_from_graph(graph, folder / "model.safetensors")
    (folder / "config.json").write_text(graph.source_config)
    more = [f"[unused{number}]" for number in range(VOCABULARY - len(WORDS))]
    (folder / "vocab.txt").write_text("\n".join([*WORDS, *more]))
    opener, name = METHODS[kind]
    opened = getattr(flodl.hf, opener)
    made = opened(folder) if kind == "base" else opened.from_pretrained(folder)
    return partial(getattr(made, name), truncation=False)


@pytest.mark.case("hf", 34)
@pytest.mark.parametrize("kind", METHODS)
def test_a_long_text_is_named_by_its_place_in_the_whole_list_or_cut(tmp_path, kind):
    call = method_of(tmp_path, kind)
    texts = [*[SHORT] * BEFORE, LONG]
    with pytest.raises(ValueError, match=rf"^text {BEFORE} has 53 tokens and the limit is 40: "):
        call(texts)
    cut = call([SHORT, LONG], truncation=True)
    assert len(cut) == 2
    fitting = call([SHORT, "[MASK]" + " b" * 37])
    torch.testing.assert_close(numbers(cut), numbers(fitting), atol=1e-6, rtol=0)


@pytest.mark.case("hf", 34)
def test_a_long_pair_is_named_by_its_place_in_the_whole_list_or_cut(tmp_path):
    call = method_of(tmp_path, "seqcls")
    pairs = [*[("a", "b")] * BEFORE, ("a", LONG)]
    with pytest.raises(ValueError, match=rf"^pair {BEFORE} has 55 tokens and the limit is 40: "):
        call(pairs)
    (cut,) = call(pairs[-1:], truncation=True)
    assert cut == call([("a", "[MASK]" + " b" * 35)])[0]


def numbers(found) -> torch.Tensor:
    """The scores of whatever a method gives, in one row."""
    if isinstance(found, np.ndarray):
        return torch.from_numpy(found).flatten()
    if hasattr(found, "score"):
        return torch.tensor([found.score])
    return torch.cat([numbers(one) for one in found])
