"""Trainings from the warm process: the same numbers, fresh where a process has fresh ones."""

import csv
import shutil
import sys
from pathlib import Path

import pytest

from tests.fdl.warm.conftest import starts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TORCH = """
class Generator:
    seeds = 0

    def seed(self):
        self.seeds += 1

default_generator = Generator()
"""


def test_random_generators_are_seeded_anew(cold):
    (cold.packages / "torch.py").write_text(TORCH)
    cold.write(
        "t/main.py",
        "import random, torch\nprint(random.random(), torch.default_generator.seeds)\n",
    )
    cold.start()
    first, second = (cold.fdl("t").stdout.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1] == "1"


REAL = """
import os, random, sys
import numpy, torch
from torch.utils.data import DataLoader

class Squares:
    def __len__(self):
        return 8

    def __getitem__(self, place):
        return place ** 2

def main():
    fresh = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    seeded = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    product = (torch.rand(300, 300) @ torch.rand(300, 300)).sum().item()
    how = sys.argv[1]
    loaded = [b.tolist() for b in DataLoader(
        Squares(), 4, num_workers=2, multiprocessing_context=how)]
    print(fresh, (seeded, product, numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum(),
                  loaded, torch.get_num_threads(), torch.cuda.is_available()), sep="\\n")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_torch_numpy_and_workers_are_those_of_a_new_process(typed, tmp_path):
    (tmp_path / "main.py").write_text(REAL)
    (tmp_path / "t").mkdir()
    (tmp_path / "fdl.yml").write_text("commands:\n  t: {path: t}\n")
    (tmp_path / "t/fdl.yml").write_text("entry: python ../main.py\n")
    typed("warm")
    for how in ("fork", "spawn"):
        results = [typed("t", how, FDL_WARM=switch).splitlines() for switch in ("0", "1", "1")]
        fresh, same = zip(*results, strict=True)
        assert len({*fresh}) == 3
        assert len({*same}) == 1
    assert starts(typed) == 4


@pytest.mark.slow
def test_a_training_has_the_same_weights_and_history(typed, tmp_path):
    """The scaffold, cold and warm."""
    typed("init", "demo", "--native")
    for path in (tmp_path / "demo").iterdir():
        shutil.move(path, tmp_path / path.name)
    typed("warm")
    seen = []
    for switch in ("0", "1", "1"):
        typed("train", "quick", "--epochs", "1", FDL_WARM=switch)
        (run,) = (tmp_path / "runs/quick").glob("2*")
        (row,) = csv.DictReader((run / "metrics.csv").read_text().splitlines())
        seen.append((weights(run), row["loss"], row["val_loss"], row["accuracy"]))
        shutil.rmtree(run)
    assert seen[0] == seen[1] == seen[2]
    assert starts(typed) == 2


def weights(run: Path) -> bytes:
    """All tensors of a run's model."""
    from safetensors.numpy import load_file

    found = load_file(run / "model.fdl")
    return b"".join(found[name].tobytes() for name in sorted(found))
