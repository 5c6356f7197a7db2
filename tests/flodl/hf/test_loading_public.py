"""Weights of the reference through the front door: what a user who opens a directory gets."""

from __future__ import annotations

import json

import pytest
import torch

from flodl.hf.auto import AutoModelForMaskedLM, AutoModelForSequenceClassification
from flodl.hf.export import write_model
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.reference_files import (
    FAMILIES,
    MLM_TABLES,
    reference_from,
    rewrite,
    save_reference,
    words_in,
)
from tests.rows import each_row

IDS = torch.tensor([[5, 9, 3, 8, 30], [7, 2, 6, 1, 1]])


def largest_difference(head, model):
    with torch.no_grad():
        return float((head.graph.eval()(IDS) - model(IDS).logits).abs().max())


@pytest.mark.case("hf", 14)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_different_tables_are_untied_also_in_the_export_and_the_reference_agrees(
    tmp_path, family, capsys
):
    source, out = tmp_path / "source", tmp_path / "out"
    save_reference(source, family, HeadKind.MLM)

    def change(tensors):
        words = words_in(tensors)
        tensors[MLM_TABLES[family]] = tensors[words].flip(0) + 0.25
        bias = MLM_TABLES[family].replace("weight", "bias")
        tensors[bias] = torch.linspace(-1, 1, len(tensors[words]))

    rewrite(source, change)
    reference = reference_from(source, family, HeadKind.MLM)
    capsys.readouterr()
    head = AutoModelForMaskedLM.from_pretrained(source)
    assert f"{MLM_TABLES[family]}: tied to another parameter" in capsys.readouterr().err
    assert MLM_TABLES[family] in head.graph.load_report.untied
    assert largest_difference(head, reference) <= 1e-5

    write_model(head.graph, head.graph.source_config, out)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    assert largest_difference(head, reference_from(out, family, HeadKind.MLM)) <= 1e-5
    again = AutoModelForMaskedLM.from_pretrained(out)
    assert again.graph.load_report.untied == ()
    assert largest_difference(again, reference) <= 1e-5


@pytest.mark.case("hf", 22)
@each_row("family", FAMILIES)
def test_two_labels_that_the_reference_did_not_write_are_counted_and_named(tmp_path, family):
    model = save_reference(tmp_path, family, HeadKind.SEQCLS)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields.keys().isdisjoint({"id2label", "label2id", "num_labels"})
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert head.labels == ("LABEL_0", "LABEL_1")
    assert largest_difference(head, model) <= 1e-5
