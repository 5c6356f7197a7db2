"""What the built-in commands take, in a form that needs no Typer."""
