"""New projects, and what is added to those that exist."""
