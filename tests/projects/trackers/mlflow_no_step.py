import mlflow

mlflow.start_run()
for number in range(5):
    mlflow.log_metric("score", number * 0.5)
mlflow.log_metric("final", 2.0)
mlflow.end_run()
