import mlflow

with mlflow.start_run():
    for step in range(10):
        mlflow.log_metric("loss", 2.0**step, step=step)
        if step == 4:
            raise RuntimeError("loss is too high")
