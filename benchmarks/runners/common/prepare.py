"""raw.csv -> data/train.csv: drops the rows that are not numbers."""

import argparse
import csv
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--raw", default="raw.csv")
parser.add_argument("--data", default="data/train.csv")
options = parser.parse_args()

target = Path(options.data)
target.parent.mkdir(exist_ok=True)
with Path(options.raw).open(newline="") as source, target.open("w", newline="") as made:
    writer = csv.writer(made)
    for row in csv.reader(source):
        if all(cell.strip() for cell in row):
            writer.writerow(row)
