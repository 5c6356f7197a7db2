"""Ranks that come and go, through torchft: its lighthouse, its manager, its process groups."""
