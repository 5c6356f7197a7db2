import mlflow

with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    for step in range(300):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
