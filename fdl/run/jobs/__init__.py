"""Several commands in one call: what each of them is, and how it ended."""
