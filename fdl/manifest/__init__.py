"""Finding, reading and checking ``fdl.yml``, and the command in it that a call selects."""
