"""This machine: findings about it, its set-up, and fdl's own installation."""
