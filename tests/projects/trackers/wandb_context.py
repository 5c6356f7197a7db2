import wandb

with wandb.init(project="digits", name="baseline", tags=["small"], notes="first try") as run:
    run.config.update({"depth": 3})
    for step in range(100):
        run.log({"train/loss": 1 / (step + 1)})
