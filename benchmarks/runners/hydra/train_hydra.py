"""train.py as a Hydra program: the parser gives way to a decorator and a file."""

import csv
import json
import random
from pathlib import Path

import hydra
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(options: DictConfig) -> None:
    """Fit a line by gradient descent."""
    with Path(hydra.utils.to_absolute_path(options.data)).open(newline="") as stream:
        points = [(float(x), float(y)) for x, y in csv.reader(stream)]
    chance = random.Random(options.seed)
    slope, offset = chance.random(), 0.0
    for _ in range(options.num_epochs):
        chance.shuffle(points)
        for x, y in points:
            error = slope * x + offset - y
            slope -= options.learning_rate * error * x
            offset -= options.learning_rate * error
    loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
    folder = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    (folder / "model.json").write_text(json.dumps({"slope": slope, "offset": offset}))
    (folder / "metrics.json").write_text(json.dumps({"loss": loss}))
    print(f"loss {loss:.6f}")


main()
