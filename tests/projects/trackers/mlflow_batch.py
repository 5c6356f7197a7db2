import time

import mlflow
from mlflow.entities import Metric, Param

with mlflow.start_run() as run:
    now = int(time.time() * 1000)
    mlflow.MlflowClient().log_batch(
        run.info.run_id,
        metrics=[
            Metric(f"layer{layer}/norm", layer + step / 10, now + step, step)
            for step in range(20)
            for layer in range(3)
        ],
        params=[Param("layers", "3")],
    )
