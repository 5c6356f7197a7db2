"""Write the ledger of one large epoch, or verify it; prints how much memory was used at most.

verify_large.py write FOLDER SAMPLES
verify_large.py verify FOLDER [SAMPLES_AT_A_TIME]
"""

import json
import sys
import time
from pathlib import Path

import torch

from flodl.ranks import epoch_check
from flodl.ranks.sample_ledger import LedgerFacts, SampleLedger, SampleRecorder
from flodl.train.run.verify import verify_run

BATCH, WINDOW = 64, 40


def write(folder, samples):
    facts = LedgerFacts(
        samples=samples, batch_size=BATCH, seed=7, sampler="random", drop_last=False, epochs=1
    )
    ledger = SampleLedger(folder / "samples.ledger", facts)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(7), dtype=torch.int32)
    recorders = [SampleRecorder(rank, BATCH) for rank in range(2)]
    for batch in range(facts.batches):
        rows = order[batch * BATCH : (batch + 1) * BATCH].long()
        recorders[batch // WINDOW % 2].trained_samples(0, batch * BATCH, batch, rows)
        if batch % (20 * WINDOW) == 0:
            ledger.append(batch, [recorder.take() for recorder in recorders])
    ledger.append(facts.batches, [recorder.take() for recorder in recorders])
    (folder / "run.json").write_text(
        json.dumps({"state": "complete", "epochs": 1, "ledger": ledger.mark()})
    )


def most_memory():
    """Bytes that this process had at most; the count begins with the program."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def verify(folder, at_a_time=None):
    if at_a_time is not None:
        epoch_check.IN_MEMORY = epoch_check.PIECE = at_a_time
    before, began = most_memory(), time.perf_counter()
    found = verify_run(folder)
    form = {
        "proven": found.proven,
        "samples": found.samples_once,
        "batches": found.batches_once,
        "vouchers": found.vouchers,
        "bytes": most_memory() - before,
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(form))


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    {"write": write, "verify": verify}[what](Path(folder), *map(int, numbers))
