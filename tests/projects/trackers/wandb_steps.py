import wandb

run = wandb.init(project="digits")
for step in range(0, 1000, 50):
    run.log({"loss": 1000 - step}, step=step)
    if step % 200 == 0:
        run.log({"val_loss": 1100 - step}, step=step)
run.finish()
