"""Which settings are secret: names and values as configurations of public projects have them."""

# ruff: noqa: E501, SIM905

from __future__ import annotations

import json

from fdl.base.masking import Mask
from fdl.base.secrets import (
    REDACTED,
    SHORTEST,
    is_secret,
    masked,
    redact_tokens,
)
from tests.rows import each_row

NAMED_SECRET = """
OPENAI_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN hub_token WANDB_API_KEY wandb-api-key COMET_API_KEY
NEPTUNE_API_TOKEN CLEARML_API_ACCESS_KEY CLEARML_API_SECRET_KEY AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
aws_secret_access_key AZURE_STORAGE_KEY azure_storage_account_key AZURE_CLIENT_SECRET GITHUB_TOKEN GH_TOKEN
gitlab_token CI_JOB_TOKEN SLACK_BOT_TOKEN SLACK_SIGNING_SECRET DISCORD_TOKEN TELEGRAM_BOT_TOKEN
POSTGRES_PASSWORD MYSQL_ROOT_PASSWORD REDIS_PASSWORD db_password dbPassword database.password PGPASSWORD
SMTP_PASSWORD mail.passwd ssh_passphrase private_key signing_key encryption_key client_secret app_secret
SECRET_KEY DJANGO_SECRET_KEY JWT_SECRET FLASK_SECRET_KEY KAGGLE_API_KEY REPLICATE_API_TOKEN ANTHROPIC_API_KEY
COHERE_API_KEY GOOGLE_API_KEY MINIO_SECRET_KEY MINIO_ACCESS_KEY s3_access_key s3.secret_key auth_token
access_token refresh_token bearer_token apikey apiKey api-key accessKey mlflow_tracking_token
MLFLOW_TRACKING_PASSWORD registry_password docker_password NPM_TOKEN PYPI_TOKEN TWINE_PASSWORD
google_credentials session_cookie deploy_key token
""".split()

ORDINARY = {
    "pad_token": "[PAD]", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>",
    "mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "image_token": "<image>",
    "additional_special_tokens": "<x>", "special_token": "<|im_start|>", "stop_token": "<|end|>",
    "start_token": "<go>", "end_token": "<stop>", "decoder_start_token": "<s>", "video_token": "<v>",
    "text_key": "text", "label_key": "label", "sort_key": "date", "image_key": "jpg", "key": "val",
    "primary_key": "id", "foreign_key": "user", "cache_key": "v1", "partition_key": "day",
    "monitor_key": "val_loss", "metric_key": "acc", "keys": "input_ids", "hotkey": "ctrl",
    "dataset_text_field": "text", "column_keys": "a", "dict_key": "x", "target_key": "y",
    "max_tokens": 128, "num_tokens": 2048, "tokens_per_batch": 4096, "max_new_tokens": 64,
    "token_type_ids": "none", "tokenizer": "bert-base-uncased", "tokenizer_name": "gpt2",
    "token_dropout": 0.1, "tokenization": "bpe", "pad_token_id": 0, "vocab_size": 30522,
    "password_field": "pw", "use_auth": "yes", "auth": "basic", "authors": "me", "secretary": "x",
    "optimizer": "adamw", "lr_scheduler_type": "cosine", "model_name_or_path": "bert-base",
    "dataset_name": "glue", "task_name": "mrpc", "output_dir": "out", "logging_dir": "logs",
    "report_to": "wandb", "run_name": "first", "project": "demo", "entity": "team", "group": "a",
    "tags": "x,y", "notes": "try", "mode": "train", "MODE": "train", "device": "cuda",
    "precision": "bf16-mixed", "strategy": "ddp", "accelerator": "gpu", "seed": 42, "patience": 3,
    "warmup_ratio": 0.1, "weight_decay": 0.01, "gradient_checkpointing": "true", "fp16": "false",
    "_target_": "torch.optim.AdamW", "defaults": "base", "hydra.run.dir": "outputs",
    "data.root": "/data", "data.num_workers": 4, "callbacks.monitor": "val/loss", "PATH": "/bin",
    "HF_HOME": "/cache", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_CACHE": "/c", "WANDB_MODE": "offline",
    "WANDB_PROJECT": "demo", "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "8", "TZ": "UTC",
    "POSTGRES_USER": "bob", "POSTGRES_DB": "runs", "REDIS_URL": "redis://localhost:6379/0",
    "MLFLOW_TRACKING_URI": "http://localhost:5000", "S3_ENDPOINT": "https://s3.local:9000",
    "image": "python:3.11", "ports": "8080:80", "volumes": ".:/app", "restart": "always",
    "service_account": "trainer", "namespace": "ml", "queue": "gpu", "monkey": "yes", "turkey": "tr",
    "keyboard": "us", "keyframe": 30, "keypoints": 17, "passes": 3, "compass": "north",
    "patch_size": 16, "path": "data/train", "pattern": "*.jpg", "patent": "none", "cookiecutter": "t",
    "label_names": "labels", "group_by_length": "true",
}  # fmt: skip

FORMATS = {
    "postgres://bob:s3cr3t-pw@db:5432/runs": "postgres://bob:<secret>@db:5432/runs",
    "redis://:s3cr3t-pw@cache": "redis://:<secret>@cache",
    "https://me:s3cr3t-pw@example.org/a.zip": "https://me:<secret>@example.org/a.zip",
    "Authorization: Bearer abcdefgh12345678": "Authorization: Bearer <secret>",
    "Authorization: Basic dXNlcjpwYXNzd29yZA==": "Authorization: Basic <secret>",
    "https://hooks.slack.com/services/T0/B0/XyZ123": "https://hooks.slack.com/services/<secret>",
    "https://discord.com/api/webhooks/12/AbC-d_e": "https://discord.com/api/webhooks/<secret>",
    "hf_abcdefghijklmnopqrstuvwx": "<secret>",
    "sk-proj-abcdefghijklmnopqrstu": "<secret>",
    "ghp_abcdefghijklmnopqrstuvwxyz0123": "<secret>",
    "use AKIAABCDEFGHIJKLMNOP here": "use <secret> here",
    "xoxb-1234567890-abcdef": "<secret>",
    "glpat-abcdefghij0123456789": "<secret>",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl": "<secret>",
}


def test_the_table_has_200_settings():
    assert len(NAMED_SECRET) + len(ORDINARY) + len(FORMATS) >= 200


@each_row("name", NAMED_SECRET)
def test_text_under_such_a_name_is_secret(name):
    assert is_secret(name, "some text")
    assert not is_secret(name, "")


@each_row(("name", "value"), ORDINARY.items())
def test_such_a_setting_is_ordinary(name, value):
    assert not is_secret(name, value)
    assert masked(str(value)) == str(value)


@each_row(("text", "shown"), FORMATS.items())
def test_a_known_format_is_masked_wherever_it_stands(text, shown):
    assert masked(text) == shown
    assert redact_tokens(["run", text, f"--url={text}"])[1] == shown
    assert Mask().text(f"before {text} after") == f"before {shown} after"


def test_a_number_is_secret_only_under_a_password():
    assert is_secret("db_password", 123456)
    assert not is_secret("hub_token", 5)


def test_short_secrets_do_not_replace_ordinary_words():
    assert Mask(["train"]).text("fdl train --mode train") == "fdl train --mode train"
    assert Mask(["train"]).text("train") == REDACTED
    long = "x" * SHORTEST
    assert Mask([long]).text(f"a{long}b") == f"a{REDACTED}b"


def test_every_way_of_printing_follows_the_table(project, fdl):
    options = {f"o{place}": text for place, text in enumerate(FORMATS)}
    options |= {name: value for name, value in ORDINARY.items() if name.isidentifier()}
    named = {name: "planted-secret-text" for name in NAMED_SECRET if name.isidentifier()}
    project(
        {
            "fdl.yml": json.dumps(
                {"entry": "echo", "commands": {"p": {"options": {**options, **named}}}}
            )
        }
    )
    for call in (("config", "show"), ("--dry-run", "p"), ("config", "show", "p"), ("p", "--help")):
        session = fdl(*call)
        assert session.exit == 0, session.err
        assert "planted" not in session.out
        assert "s3cr3t" not in session.out
        assert "[PAD]" in session.out
        assert "bert-base-uncased" in session.out
    assert "planted" not in fdl("p").err


def test_public_switches_the_rule_off(project, fdl):
    project(
        {
            "fdl.yml": "entry: echo\nenv: {API_TOKEN: !public shown-in-clear}\n"
            "commands: {p: {options: {access_token: !public shown-in-clear, b_token: hidden-text}}}\n"
        }
    )
    for call in (("--dry-run", "p"), ("config", "show"), ("config", "show", "p")):
        session = fdl(*call)
        assert session.exit == 0, session.err
        assert "shown-in-clear" in session.out
        assert "hidden-text" not in session.out


def test_variables_listed_as_secret_are_masked_everywhere(project, fdl):
    project({"fdl.yml": "secrets: [DB_URL]\ncommands: {t: {run: echo planted-database}}\n"})
    session = fdl("--dry-run", "t", env={"DB_URL": "planted-database"})
    assert session.exit == 0
    assert "planted-database" not in session.out
    assert REDACTED in session.out
