"""Turn texts into ids: read tokenizer files of all kinds, pad and truncate."""
