"""Threads that run one model at the same time get the results of one thread."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flodl.hf import AutoModelForSequenceClassification, write_tiny_model
from flodl.hf.auto import class_of
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.reference import loss_cells
from tests.flodl.hf.batches import batch_of_ids

CALLS = 60
CELLS = [
    cell
    for cell in all_cells()
    if cell.family in ("bert", "deberta-v2") and cell.head != HeadKind.BASE.value
]


def batches():
    """Two batches of other rows, lengths and padding."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 120, (4, 13), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 6:] = mask[1, :4] = mask[2, 3:] = 0
    others = torch.randint(5, 120, (4, 7), generator=generator)
    return batch_of_ids(ids, mask), batch_of_ids(others, torch.ones_like(others))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_losses_and_logits_are_those_of_one_thread(cell):
    config, kind = tiny_config(cell), HeadKind(cell.head)
    made = class_of(config, kind)
    torch.manual_seed(4)
    head = made.from_config(config, num_labels=3)
    head.graph.eval()
    given = [(enc, loss_cells(kind, head.config, enc)[0]) for enc in batches()]

    def call(number):
        enc, one = given[number % 2]
        chosen = {} if one.problem_type is None else {"problem_type": one.problem_type}
        with torch.inference_mode(number % 3 > 0):
            loss = head.compute_loss(enc, **one.labels, **chosen)
            padding = False if kind is HeadKind.QA else None
            return loss.detach(), head.forward_encoded(enc, padding=padding).detach()

    expected = [call(number) for number in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(call, range(CALLS)))
    finally:
        sys.setswitchinterval(before)
    for number, found in enumerate(results):
        for mine, alone in zip(found, expected[number % 6], strict=True):
            torch.testing.assert_close(mine, alone, rtol=0, atol=1e-6)


def test_eight_threads_over_one_model_answer_as_one_does_to_the_bit(tmp_path):
    folder = write_tiny_model(tmp_path / "model", head=HeadKind.SEQCLS)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    words = ["the", "ship", "sailed", "across", "a", "sea", "of", "glass"]
    texts = [" ".join(words[start : start + count]) for start in range(8) for count in range(1, 9)]
    expected = [model.predict([text]) for text in texts]
    assert len({answer[0][0].score for answer in expected}) > 30
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: model.predict([text]), texts * 2))
    finally:
        sys.setswitchinterval(before)
    assert found == expected * 2
