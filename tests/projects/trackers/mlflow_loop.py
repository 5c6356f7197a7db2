import mlflow

mlflow.set_experiment("depths")
for depth in (2, 4, 8):
    with mlflow.start_run():
        mlflow.log_param("depth", depth)
        mlflow.log_metric("accuracy", 1 - 1 / depth)
