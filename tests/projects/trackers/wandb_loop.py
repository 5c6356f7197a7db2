import wandb

for lr in (0.1, 0.01):
    run = wandb.init(project="sweep", config={"lr": lr}, reinit="finish_previous", group="lr")
    for _ in range(4):
        run.log({"loss": lr})
    run.finish()
