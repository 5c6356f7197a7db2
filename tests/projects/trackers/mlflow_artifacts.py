import mlflow

with mlflow.start_run(tags={"team": "vision"}, description="with files"):
    mlflow.log_text("hello", "notes/hello.txt")
    mlflow.log_dict({"classes": ["cat", "dog"]}, "classes.json")
    mlflow.set_tag("stage", "test")
    mlflow.log_metric("test/accuracy", 0.75)
