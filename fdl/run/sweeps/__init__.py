"""Sweeps: one command, run once for each combination of values, or for values that Optuna picks."""
