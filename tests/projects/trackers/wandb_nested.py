import wandb

wandb.init(project="digits", config={"optimizer": {"name": "adam", "betas": [0.9, 0.999]}})
for step in range(5):
    wandb.log({"train": {"loss": 1 / (step + 1), "norm": {"l2": step}}, "done": step == 4})
wandb.finish()
