import wandb

wandb.init(project="digits")
for epoch in range(1, 4):
    wandb.log({"epoch": epoch}, commit=False)
    wandb.log({"loss": 1 / epoch}, commit=False)
    wandb.log({"accuracy": 1 - 1 / epoch})
wandb.finish()
