"""The model takes images, gives ten logits per image, and learns."""

import pytest
import torch
from flodl import Batch, digits
from main import build_model, train_step

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_few_steps_lower_the_loss(device):
    torch.manual_seed(0)
    model = build_model(device)
    images, labels = (column.to(device) for column in digits("train").get_batch(range(64)))
    assert model(images).shape == (64, 10)

    batch = Batch((images, labels), ("image", "label"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = train_step(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
