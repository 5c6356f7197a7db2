import mlflow

with mlflow.start_run(run_name="search"):
    best = float("inf")
    for lr in (0.1, 0.01):
        with mlflow.start_run(run_name=f"lr={lr}", nested=True):
            mlflow.log_param("lr", lr)
            for step in range(3):
                mlflow.log_metric("loss", lr / (step + 1), step=step)
            best = min(best, lr / 3)
    mlflow.log_metric("best_loss", best)
