import argparse

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()

run = wandb.init(project="digits", config=vars(args))
wandb.log({"loss": float("inf")})
wandb.log({"loss": float("nan")})
wandb.summary["test_accuracy"] = 0.875
run.summary["note"] = "not a number"
