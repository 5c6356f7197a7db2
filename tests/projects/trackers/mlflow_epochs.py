import math

import mlflow

params = {"lr": 0.01, "batch_size": 32, "optimizer": "adam", "amp": False}

mlflow.set_experiment("digits")
with mlflow.start_run(run_name="baseline"):
    mlflow.log_params(params)
    for epoch in range(1, 6):
        train_loss = math.exp(-epoch)
        mlflow.log_metrics(
            {"epoch": epoch, "train_loss": train_loss, "val_loss": 1.1 * train_loss}, step=epoch
        )
