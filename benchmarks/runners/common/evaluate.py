"""Scores out/model.json on data/train.csv; writes out/score.json."""

import argparse
import csv
import json
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data/train.csv")
parser.add_argument("--output_dir", default="out")
options = parser.parse_args()

folder = Path(options.output_dir)
model = json.loads((folder / "model.json").read_text())
with Path(options.data).open(newline="") as stream:
    worst = max(
        abs(model["slope"] * float(x) + model["offset"] - float(y)) for x, y in csv.reader(stream)
    )
(folder / "score.json").write_text(json.dumps({"worst": worst}))
print(f"worst {worst:.6f}")
