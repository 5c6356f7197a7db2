import numpy as np
import wandb

with wandb.init(project="digits") as run:
    for step in range(3):
        image = wandb.Image(np.full((8, 8, 3), step * 20, np.uint8), caption="a square")
        table = wandb.Table(columns=["text", "score"], data=[["good", 0.5]])
        run.log(
            {"loss": step / 2, "image": image, "weights": wandb.Histogram([1, 2, 3]), "t": table}
        )
