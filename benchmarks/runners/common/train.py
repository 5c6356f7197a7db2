"""Fits a line to data/train.csv by gradient descent; writes model.json and metrics.json."""

import argparse
import csv
import json
import random
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data/train.csv")
parser.add_argument("--learning_rate", type=float, default=0.01)
parser.add_argument("--num_epochs", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output_dir", default="out")
options = parser.parse_args()

with Path(options.data).open(newline="") as stream:
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
folder = Path(options.output_dir)
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.json").write_text(json.dumps({"slope": slope, "offset": offset}))
(folder / "metrics.json").write_text(json.dumps({"loss": loss}))
print(f"loss {loss:.6f}")
