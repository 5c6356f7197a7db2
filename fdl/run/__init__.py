"""Executing a Plan: only this package of fdl starts the user's programs."""
