"""The Trainer of transformers trains our models, and its collator and tokenizers have our names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flodl.hf
from flodl.hf import (
    AutoModelForSequenceClassification,
    BertTokenizerFast,
    default_data_collator,
)
from tests.flodl.hf.models_material import small_config
from tests.flodl.hf.predict.reference import write
from tests.later import transformers


def rows_of(tokenizer, count):
    texts = [f"the quick fox number {n}" for n in range(count)]
    encoded = tokenizer(texts, truncation=True, padding="max_length", max_length=12)
    return [
        {"label": 1, **{name: values[n] for name, values in encoded.items()}} for n in range(count)
    ]


def test_the_trainer_of_transformers_trains_a_model(tmp_path):
    write(tmp_path / "model", "bert", "ForSequenceClassification", num_labels=2)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    tokenizer = BertTokenizerFast.from_pretrained(tmp_path / "model", use_fast=True)
    rows = rows_of(tokenizer, 8)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        activation_checkpointing=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=default_data_collator,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert model.config.use_cache is False
    assert (tmp_path / "out" / "checkpoint-2" / "model.safetensors").exists()
    model.save_pretrained(tmp_path / "saved")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    batch = {"input_ids": torch.tensor([rows[0]["input_ids"]])}
    torch.testing.assert_close(model.eval()(**batch).logits, theirs.eval()(**batch).logits)


def test_noise_on_the_vectors_of_words_is_that_of_transformers(tmp_path):
    folder = tmp_path / "model"
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write(folder, "bert", "ForSequenceClassification", num_labels=2, **plain)
    rows = [{"input_ids": [2, 5, 6, 3], "labels": n % 2} for n in range(8)]
    losses = []
    for classes in (transformers, flodl.hf):
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            max_steps=4,
            neftune_noise_alpha=5.0,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        model = classes.BertForSequenceClassification.from_pretrained(folder)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        losses.append(trainer.train().training_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_collator_gives_what_that_of_transformers_gives():
    rows = [
        {"label": 1, "input_ids": [1, 2], "text": "a", "none": None},
        {"label": 0, "input_ids": [3, 4], "text": "b", "none": None},
    ]
    for given in (
        rows,
        [{"label": 0.5, "x": torch.ones(2)}] * 2,
        [{"label_ids": [1, 2], "x": [0.5]}] * 2,
        [{"label": True}, {"label": False}],
        [{"label": [1, 0, 1]}, {"label": [0, 0, 1]}],  # several classes at once
        [{"label": np.float64(0.5)}, {"label": np.float64(1)}],
        [{"label": np.int32(2), "label_ids": None}] * 2,
        [{"label": torch.tensor(1, dtype=torch.int32)}] * 2,
        [{"label_ids": [0.5, 1.0]}] * 2,
    ):
        ours, theirs = default_data_collator(given), transformers.default_data_collator(given)
        assert set(ours) == set(theirs)
        for name, value in ours.items():
            assert torch.equal(value, theirs[name])
            assert value.dtype == theirs[name].dtype
    with pytest.raises(ValueError, match="different lengths of 'x': pad them with DataCollatorW"):
        default_data_collator([{"x": [1]}, {"x": [1, 2]}])


def test_tokenizers_have_the_names_of_transformers(tmp_path):
    write(tmp_path, "bert", "ForSequenceClassification")
    names = [name for name in flodl.hf.__all__ if name.endswith("TokenizerFast")]
    assert len(names) == 7
    for name in names:
        tokenizer = getattr(flodl.hf, name).from_pretrained(tmp_path, trust_remote_code=False)
        assert isinstance(tokenizer, getattr(flodl.hf, name))
        assert getattr(transformers, name)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=False)
    assert model.config.model_type == small_config("bert").model_type
