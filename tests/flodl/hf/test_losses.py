"""Losses: values and gradients are those the published models were trained with."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from flodl.hf.auto import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from flodl.hf.encoder_model import set_unpad
from flodl.hf.losses import (
    deberta_sequence_classification_loss,
    masked_lm_loss,
    question_answering_loss,
    sequence_classification_loss,
    token_classification_loss,
)
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.predict.reference import write
from tests.rows import each_row, sampled

FAMILIES = [
    *("bert", "roberta", "distilbert", "xlm-roberta", "albert", "deberta-v2"),
    # verify-matrix compares its losses at every change.
    pytest.param("modernbert", marks=pytest.mark.slow),
]
IGNORED_WARNING = "no label of this batch counts"
ROWS, LENGTH = 4, 7


def some_batch(vocabulary=60):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, vocabulary, (ROWS, LENGTH), generator=generator)
    return batch_of_ids(ids, torch.ones_like(ids))


def padded_batch(family, vocabulary=60):
    """Rows of several lengths, padded on the right, on the left, and not at all."""
    pad = 1 if "roberta" in family else 0
    generator = torch.Generator().manual_seed(6)
    ids = torch.randint(5, vocabulary, (ROWS, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 4:] = mask[1, :3] = mask[3, 2:] = 0
    return batch_of_ids(ids.masked_fill(mask == 0, pad), mask)


def assert_like_reference(model, head, batch, ours, **labels):
    """Equal loss, and equal gradients of all parameters.

    Args:
        model: Of the reference.
        head: The same model here.
        batch: Its input.
        ours: Our loss.
        **labels: What the reference is given.
    """
    # The reference writes what it finds out about the labels into its configuration.
    model = copy.deepcopy(model)
    theirs = model(batch.input_ids, batch.attention_mask, **labels).loss
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert ours.ndim == 0
    head.graph.zero_grad()
    ours.backward()
    theirs.backward()
    gradients = {name: value.grad for name, value in head.graph.named_parameters()}
    compared = 0
    for name, parameter in model.named_parameters():
        if name in gradients and parameter.grad is not None:
            assert torch.allclose(gradients[name], parameter.grad, atol=1e-6, rtol=1e-4), name
            compared += 1
    assert compared > 20


def sequence(tmp_path, family, labels, problem=None):
    model = write(
        tmp_path, family, "ForSequenceClassification", num_labels=labels, problem_type=problem
    )
    return model, AutoModelForSequenceClassification.from_pretrained(tmp_path)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.tensor([[0.5, 1, -2], [0, 0, 1], [3, 2, 1], [1, 1, 1]])),
        ("single_label_classification", torch.tensor([0, 2, 1, 1])),
        ("single_label_classification", torch.tensor([[0], [2], [-100], [1]])),
        (
            "multi_label_classification",
            torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 1]]),
        ),
    ],
)
def test_each_problem_type_has_the_loss_of_the_reference(tmp_path, family, problem, labels):
    model, head = sequence(tmp_path, family, 3, problem)
    batch = some_batch()
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("count", "labels"),
    [
        (1, torch.tensor([0.5, -1.0, 2.0, 0.0])),
        (1, torch.tensor([[0.5], [-1.0], [2.0], [0.0]])),
        (3, torch.tensor([0, 2, 1, 1])),
        (3, torch.tensor([[0.0, 0.3, 0.7], [0, 0, 1], [0.2, 0.4, 0.4], [1, 0, 0]])),
    ],
)
def test_without_a_problem_type_the_labels_decide_as_in_the_reference(
    tmp_path, family, count, labels
):
    model, head = sequence(tmp_path, family, count)
    batch = some_batch()
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)
    assert head.config.problem_type is None


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("labels", [torch.tensor([0, -1, 2, -100]), torch.tensor([-1, 1, -1, -1])])
def test_deberta_leaves_out_rows_with_negative_labels(tmp_path, labels):
    model, head = sequence(tmp_path, "deberta-v2", 3)
    batch = some_batch()
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


@pytest.mark.case("hf", 12)
def test_deberta_without_any_label_has_a_loss_of_zero(tmp_path):
    model, head = sequence(tmp_path, "deberta-v2", 3)
    batch, labels = some_batch(), torch.full((ROWS,), -1)
    ours = head.compute_loss(batch, labels)
    assert ours.item() == model(batch.input_ids, labels=labels).loss.item() == 0
    ours.backward()


@pytest.mark.case("hf", 12)
def test_what_deberta_cannot_learn_from_is_refused():
    for labels in (torch.tensor([0, 1]), torch.tensor([[0], [1]])):
        with pytest.raises(ValueError, match=r"labels must be floating-point, got torch\.int64"):
            deberta_sequence_classification_loss(torch.zeros(2, 1), labels)
    with pytest.raises(ValueError, match=r"labels \[B, 1\] have no meaning for a DeBERTa model"):
        deberta_sequence_classification_loss(torch.zeros(2, 3), torch.tensor([[0], [1]]))


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_have_the_loss_of_the_reference(tmp_path, family):
    model = write(tmp_path, family, "ForTokenClassification", num_labels=3)
    head = AutoModelForTokenClassification.from_pretrained(tmp_path)
    batch = some_batch()
    labels = (batch.input_ids % 3).masked_fill(batch.input_ids % 4 == 0, -100)
    assert (labels == -100).any()
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
def test_masked_tokens_have_the_loss_of_the_reference(tmp_path, family):
    model = write(tmp_path, family, "ForMaskedLM")
    head = AutoModelForMaskedLM.from_pretrained(tmp_path)
    batch = some_batch()
    labels = batch.input_ids.masked_fill(batch.input_ids % 3 != 0, -100)
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


ANSWERS = (
    ([1, 2, 0, 3], [2, 2, 5, 6]),
    ([-4, LENGTH, 99, 3], [-1, 4, 1000, LENGTH]),
    ([[1], [2], [9], [0]], [[1], [3], [9], [0]]),
)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize(
    ("family", "places"),
    [
        *sampled(FAMILIES[:-1], ANSWERS),
        *(pytest.param("modernbert", places, marks=pytest.mark.slow) for places in ANSWERS),
    ],
)
def test_answers_have_the_loss_of_the_reference_also_outside_of_the_text(tmp_path, family, places):
    starts, ends = places
    model = write(tmp_path, family, "ForQuestionAnswering")
    head = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    batch = some_batch()
    positions = {"start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}
    ours = head.compute_loss(batch, **positions)
    assert_like_reference(model, head, batch, ours, **positions)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_in_padded_rows_have_the_loss_of_the_reference(tmp_path, family):
    model = write(tmp_path, family, "ForQuestionAnswering")
    head = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    batch = padded_batch(family)
    positions = {
        "start_positions": torch.tensor([1, 4, 99, 0]),
        "end_positions": torch.tensor([3, 6, 5, 1]),
    }
    ours = head.compute_loss(batch, **positions)
    assert_like_reference(model, head, batch, ours, **positions)
    set_unpad(head, True)
    assert abs(head.compute_loss(batch, **positions).item() - ours.item()) > 1e-4


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("at_padding", [False, True], ids=["tokens", "padding"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_in_padded_rows_have_the_loss_of_the_reference(tmp_path, family, at_padding):
    model = write(tmp_path, family, "ForTokenClassification", num_labels=3)
    head = AutoModelForTokenClassification.from_pretrained(tmp_path)
    batch = padded_batch(family)
    labels = (torch.arange(ROWS * LENGTH) % 3).view(ROWS, LENGTH)
    left_out = torch.arange(LENGTH) % 4 == 0
    if not at_padding:
        left_out = left_out | (batch.attention_mask == 0)
    labels = labels.masked_fill(left_out, -100)
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("at_padding", [False, True], ids=["tokens", "padding"])
@pytest.mark.parametrize("family", FAMILIES)
def test_masked_tokens_in_padded_rows_have_the_loss_of_the_reference(tmp_path, family, at_padding):
    # Larger logits give losses above 8, where float32 has no steps as small as the bound.
    model = write(tmp_path, family, "ForMaskedLM", spread=0.4)
    head = AutoModelForMaskedLM.from_pretrained(tmp_path)
    batch = padded_batch(family)
    left_out = batch.input_ids % 3 != 0
    if not at_padding:
        left_out = left_out | (batch.attention_mask == 0)
    labels = (batch.input_ids + 7).masked_fill(left_out, -100)
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


@pytest.mark.case("hf", 12)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.tensor([[0.5, 1, -2], [0, 0, 1], [3, 2, 1], [1, 1, 1]])),
        ("single_label_classification", torch.tensor([0, 2, 1, 1])),
        (
            "multi_label_classification",
            torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 1]]),
        ),
    ],
)
def test_padded_rows_have_the_loss_of_the_reference(tmp_path, family, problem, labels):
    model, head = sequence(tmp_path, family, 3, problem)
    batch = padded_batch(family)
    if problem == "regression":
        # Near the outputs: float32 has no steps as small as the bound in a loss above 8.
        labels = labels + model(batch.input_ids, batch.attention_mask).logits.detach()
    assert_like_reference(model, head, batch, head.compute_loss(batch, labels), labels=labels)


def test_a_problem_type_of_the_call_goes_before_that_of_the_model(tmp_path):
    _, head = sequence(tmp_path, "bert", 3, "multi_label_classification")
    batch, labels = some_batch(), torch.tensor([0, 2, 1, 1])
    loss = head.compute_loss(batch, labels, "single_label_classification")
    assert loss.item() == pytest.approx(F.cross_entropy(head.forward_encoded(batch), labels).item())
    assert head.config.problem_type == "multi_label_classification"


def test_probabilities_are_targets_of_a_cross_entropy():
    logits, labels = torch.randn(2, 3), torch.tensor([[0.1, 0.6, 0.3], [1, 0, 0]])
    loss = sequence_classification_loss(logits, labels, "soft")
    expected = -(labels * logits.log_softmax(-1)).sum(-1).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


@each_row(
    "loss",
    [
        lambda x: token_classification_loss(x, torch.full((2, 3), -100)),
        lambda x: masked_lm_loss(x, torch.full((2, 3), -100)),
        lambda x: question_answering_loss(x[..., :2], torch.tensor([3, 9]), torch.tensor([4, 4])),
        lambda x: sequence_classification_loss(x[:, 0], torch.tensor([-100, -100])),
    ],
)
def test_where_nothing_counts_the_loss_is_zero_with_gradients_and_one_warning(loss):
    logits = torch.randn(2, 3, 4, requires_grad=True)
    with pytest.warns(UserWarning, match=IGNORED_WARNING) as caught:
        value = loss(logits)
    assert len(caught) == 1
    assert value.item() == 0
    value.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_starts_that_do_not_count_leave_the_loss_of_the_ends():
    logits = torch.randn(2, 3, 2)
    ends = torch.tensor([0, 2])
    with pytest.warns(UserWarning, match=IGNORED_WARNING):
        loss = question_answering_loss(logits, torch.tensor([3, 3]), ends)
    assert loss.item() == pytest.approx(F.cross_entropy(logits[..., 1], ends).item() / 2)


@each_row("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype):
    logits = (20 * torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    labels = torch.tensor([[1, -100, 7], [3, 4, 5]])
    loss = masked_lm_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == masked_lm_loss(logits.float(), labels).item()
    assert math.isfinite(loss.item())


@each_row("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_numbers_of_labels_come_in_any_integer_dtype(dtype):
    logits, labels = torch.randn(2, 3), torch.tensor([2, 0])
    expected = F.cross_entropy(logits, labels).item()
    assert sequence_classification_loss(logits, labels.to(dtype)).item() == pytest.approx(expected)


def test_flags_are_labels_of_a_multi_label_model():
    logits, flags = torch.randn(2, 3), torch.tensor([[True, False, True], [False, False, True]])
    expected = F.binary_cross_entropy_with_logits(logits, flags.float()).item()
    assert sequence_classification_loss(logits, flags).item() == pytest.approx(expected)


@each_row(
    ("call", "message"),
    [
        (lambda: sequence_classification_loss(_z(2), _n(2)), r"logits must be \[B, N\], got \[2\]"),
        (lambda: sequence_classification_loss(_z(2, 3), _n(3)), r"\[B\] = \[2\], got \[3\]"),
        (lambda: sequence_classification_loss(_z(2, 3), _n(2, 3)), r"\[B\] = \[2\], got \[2, 3\]"),
        (lambda: sequence_classification_loss(_z(2, 3), _z(2)), r"\[B, N\] = \[2, 3\], got \[2\]"),
        (lambda: sequence_classification_loss(_z(2, 3), _n(2), "both"), "'both' is not one of"),
        (lambda: token_classification_loss(_z(2, 3), _n(2)), r"must be \[B, S, N\], got \[2, 3\]"),
        (lambda: token_classification_loss(_z(2, 3, 4), _n(2)), r"\[B, S\] = \[2, 3\], got \[2\]"),
        (lambda: masked_lm_loss(_z(2, 3), _n(2)), r"must be \[B, S, V\], got \[2, 3\]"),
        (lambda: question_answering_loss(_z(2, 3, 4), _n(2), _n(2)), r"\[B, S, 2\], got"),
        (
            lambda: question_answering_loss(_z(2, 3, 2), _n(3), _n(2)),
            r"start_positions must be \[B\]",
        ),
        (
            lambda: question_answering_loss(_z(2, 3, 2), _n(2), _n(2, 2)),
            r"end_positions must be \[B\]",
        ),
        (
            lambda: sequence_classification_loss(_z(2, 3), _z(2), "single_label_classification"),
            r"must be integers, got torch.float32",
        ),
        (lambda: token_classification_loss(_z(2, 3, 4), _z(2, 3)), "must be integers"),
        (lambda: masked_lm_loss(_z(2, 3, 4), _z(2, 3)), "must be integers"),
        (lambda: question_answering_loss(_z(2, 3, 2), _z(2), _n(2)), "must be integers"),
    ],
)
def test_wrong_labels_are_an_error_that_says_what_is_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _z(*shape):
    return torch.zeros(shape)


def _n(*shape):
    return torch.zeros(shape, dtype=torch.int64)
