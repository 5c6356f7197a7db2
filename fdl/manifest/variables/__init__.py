"""Environment variables of a manifest: ``env:``, ``env_file:``, and ``${VAR}`` in values."""
