import wandb

with wandb.init(project="digits") as run:
    run.define_metric("epoch")
    run.define_metric("val/*", step_metric="epoch", summary="min")
    for step in range(30):
        run.log({"train/loss": 1 / (step + 1)})
        if step % 10 == 9:
            run.log({"val/loss": 2 / (step + 1), "epoch": step // 10})
