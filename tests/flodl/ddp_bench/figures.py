"""Runs that never were, for tests of what is made of them."""

from flodl.ddp_bench.records import EpochRow, RunRecord


def row(epoch=0, **values):
    return EpochRow(**({"epoch": epoch, "loss": 0.5, "eval": 0.9, "train_ms": 1000.0} | values))


def record(**values):
    config = {
        "epochs": 1,
        "batches": None,
        "batch_size": 64,
        "seed": 42,
        "ddp": {},
        **values.pop("config", {}),
    }
    defaults = {
        "model": "mlp",
        "mode": "solo-0",
        "data": "real",
        "devices": ("GPU A",),
        "transport": "nobody",
        "threads": 1,
        "torch": "2.13",
        "metric": "accuracy",
        "higher_is_better": True,
        "rows": (row(),),
        "loading_ms": 10.0,
        "total_ms": 1500.0,
        "evaluated": 10_000,
    }
    return RunRecord(**(defaults | {"config": config} | values))
