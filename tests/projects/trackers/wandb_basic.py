import random

import wandb

random.seed(1)
wandb.init(project="my-project", config={"lr": 0.02, "architecture": "CNN", "epochs": 10})
offset = random.random() / 5
for epoch in range(2, 10):
    acc = 1 - 2**-epoch - random.random() / epoch - offset
    loss = 2**-epoch + random.random() / epoch + offset
    wandb.log({"acc": acc, "loss": loss})
wandb.finish()
