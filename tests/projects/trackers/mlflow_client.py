from mlflow import MlflowClient

client = MlflowClient()
experiment = client.create_experiment("by-client")
run = client.create_run(experiment)
for step in range(0, 50, 5):
    client.log_metric(run.info.run_id, "loss", 100 - step, step=step)
client.set_terminated(run.info.run_id)
