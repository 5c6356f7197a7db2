"""Loss functions, averaged over the batch; predictions come first, targets second.

Nine are torch's own under the same name. Five wrap torch's to change a surprising default or to
add a check. :func:`focal_loss` does not exist in torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor
from torch.nn.functional import (
    cosine_embedding_loss as cosine_embedding_loss,
    ctc_loss as ctc_loss,
    hinge_embedding_loss as hinge_embedding_loss,
    l1_loss as l1_loss,
    margin_ranking_loss as margin_ranking_loss,
    mse_loss as mse_loss,
    nll_loss as nll_loss,
    poisson_nll_loss as poisson_nll_loss,
    triplet_margin_loss as triplet_margin_loss,
)


def cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy between logits and classes.

    Args:
        logits: ``[N, C]``, or ``[N, C, …]`` with one prediction per position; not normalised.
        target: Class indices ``[N]`` or ``[N, …]`` of any integer dtype, or probabilities with
            the shape of ``logits``.
        weight: One factor per class ``[C]``; the mean is weighted by it.
        ignore_index: Positions with this class index are ignored.
        label_smoothing: Share of the target spread evenly over all classes, 0 … 1.

    Returns:
        The mean, 0-d.
    """
    # Labels often arrive as uint8 or int32, which torch refuses.
    if not target.is_floating_point():
        target = target.long()
    return F.cross_entropy(
        logits, target, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing
    )


def bce_loss(probability: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Binary cross entropy of probabilities; :func:`bce_with_logits_loss` is more precise.

    Args:
        probability: Values of 0 … 1 of any shape, such as the output of a sigmoid.
        target: Values of 0 … 1 of the same shape; integers and booleans are converted.
        weight: Factors that can be broadcast to the shape.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: The shapes differ.
    """
    _check_same_shape("bce_loss", probability, target)
    return F.binary_cross_entropy(probability, target.to(probability.dtype), weight=weight)


def bce_with_logits_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross entropy of logits: sigmoid and logarithm in one step, without overflow.

    Args:
        logits: Any shape; not normalised.
        target: Values of 0 … 1 of the same shape; integers and booleans are converted.
        weight: Factors that can be broadcast to the shape.
        pos_weight: Factors for the positive part only, for rare positives.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: The shapes differ.
    """
    _check_same_shape("bce_with_logits_loss", logits, target)
    return F.binary_cross_entropy_with_logits(
        logits, target.to(logits.dtype), weight=weight, pos_weight=pos_weight
    )


def kl_div_loss(log_prediction: Tensor, target: Tensor, *, log_target: bool = False) -> Tensor:
    """Kullback–Leibler divergence of predictions from targets, per sample.

    The sum over all elements, divided by the length of the first dimension. This is the
    definition; torch's own default divides by the number of elements.

    Args:
        log_prediction: Logarithms of probabilities ``[N, …]``, such as the output of
            ``log_softmax``.
        target: Probabilities of the same shape, or their logarithms.
        log_target: Whether ``target`` holds logarithms.

    Returns:
        The mean over samples, 0-d.

    Raises:
        ValueError: The shapes differ.
    """
    _check_same_shape("kl_div_loss", log_prediction, target)
    return F.kl_div(log_prediction, target, reduction="batchmean", log_target=log_target)


def smooth_l1_loss(prediction: Tensor, target: Tensor, beta: float = 1.0) -> Tensor:
    """Squared error below ``beta``, absolute error above, joined smoothly (Girshick, 2015).

    Args:
        prediction: Any shape.
        target: The same shape.
        beta: Where the two parts meet: d²/2β for |d| < β, else |d| − β/2.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: ``beta`` is not above 0, or the shapes differ.
    """
    if not beta > 0:
        raise ValueError(f"smooth_l1_loss: beta must be above 0, got {beta!r}; 0 is l1_loss")
    _check_same_shape("smooth_l1_loss", prediction, target)
    return F.smooth_l1_loss(prediction, target, beta=beta)


def focal_loss(logits: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Cross entropy that weights easy samples less (Lin et al., 2017, arXiv 1708.02002).

    The mean of −α (1 − p_t)^γ log p_t, where p_t is the probability of the true class.

    Args:
        logits: ``[N, C]``, not normalised.
        target: Class indices ``[N]`` of any integer dtype.
        alpha: Factor on the whole loss.
        gamma: How strongly easy samples are weighted down; 0 gives α times the cross entropy.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: The shapes do not match, the target is not integer, or ``gamma`` is below 0.
    """
    if logits.dim() != 2 or target.shape != logits.shape[:1] or target.is_floating_point():
        raise ValueError(
            "focal_loss: needs logits [N, C] and class indices [N], got shapes "
            f"{list(logits.shape)} and {list(target.shape)} of {target.dtype}"
        )
    if not gamma >= 0:
        raise ValueError(f"focal_loss: gamma must be at least 0, got {gamma!r}")
    log_p = logits.log_softmax(dim=1).gather(1, target.long()[:, None])
    # Clamped just above 0: at 0 a power below one has an infinite slope, so the gradient of a
    # perfectly classified sample would be 0 · inf.
    doubt = (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).tiny)
    return (-alpha * doubt**gamma * log_p).mean()


def _check_same_shape(name: str, prediction: Tensor, target: Tensor) -> None:
    """Refuse different shapes: broadcasting them is nearly always a forgotten squeeze."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"{name}: prediction and target must have the same shape, got "
            f"{list(prediction.shape)} and {list(target.shape)}"
        )
