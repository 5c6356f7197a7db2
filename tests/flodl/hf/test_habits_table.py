"""The table of usual calls in the guide: every call of ours runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import flodl.hf
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.predict.reference import SENTENCES, write
from tests.flodl.hf.test_embed import layout
from tests.rows import each_row

PAGE = Path(__file__).parents[3] / "docs/guide/huggingface.md"
CODE = re.compile(r"`([^`]+)`")


def table():
    """Habit -> the calls of ours; those of transformers where ours are the same."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- habits -->")
    lines = rest.partition("<!-- end -->")[0].strip().splitlines()[2:]
    found = {}
    for line in lines:
        habit, theirs, others, ours = (cell.strip() for cell in line.strip("|").split("|"))
        calls = CODE.findall(theirs + others if ours == "the same" else ours)
        found[habit] = calls
    return found


TABLE = table()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the guide says that the names in the table are."""
    folder = tmp_path_factory.mktemp("habits")
    write(folder, "bert", "ForSequenceClassification", num_labels=2)
    layout(folder, model={"max_seq_length": 12})
    torch.manual_seed(0)
    model = flodl.hf.AutoModelForSequenceClassification.from_pretrained(folder)
    batch = encoded(model.tokenizer, SENTENCES[:3])
    ids, mask = batch.input_ids, batch.attention_mask
    return {
        **{name: getattr(flodl.hf, name) for name in flodl.hf.__all__},
        "torch": torch,
        "src": folder,
        "folder": folder / "saved",
        "model": model,
        "base": flodl.hf.AutoModel.from_pretrained(folder),
        "st": flodl.hf.SentenceTransformer(folder),
        "texts": list(SENTENCES[:3]),
        "batch": {"input_ids": ids, "attention_mask": mask},
        "ids": ids,
        "mask": mask,
        "labels": torch.tensor([0, 1, 1]),
        "vectors": model.get_input_embeddings()(ids),
        "found": flodl.hf.SentenceTransformer(folder).encode(list(SENTENCES[:3])),
    }


def test_the_table_is_read():
    assert len(TABLE) > 25
    assert all(TABLE.values())


@each_row("habit", list(TABLE))
def test_a_usual_call_runs(names, habit):
    for call in TABLE[habit]:
        assert eval(call, dict(names)) is not None or call.endswith("_enable()"), call
