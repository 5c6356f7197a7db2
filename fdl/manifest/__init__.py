"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest."""
