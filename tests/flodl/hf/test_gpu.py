"""Models of the Hub on a GPU: what they compute on the processor, up to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models_material import FAMILIES, small_model, some_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def computed(family: str, kind: HeadKind, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the gradients of the mean of their squares."""
    graph = small_model(family, kind).to(device)
    ids, mask = (tensor.to(device) for tensor in some_ids())
    outputs: Tensor = graph(ids, mask)
    outputs.square().mean().backward()
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in graph.named_parameters()
        if parameter.grad is not None
    }
    return outputs.detach().cpu(), gradients


@pytest.mark.parametrize("kind", HeadKind)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of_the_processor(family: str, kind: HeadKind) -> None:
    there, here = (computed(family, kind, device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(there[0], here[0], rtol=1e-4, atol=1e-5)
    assert there[1].keys() == here[1].keys()
    for name, gradient in here[1].items():
        torch.testing.assert_close(there[1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)
