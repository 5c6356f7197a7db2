"""How ranks start, find each other and end."""
