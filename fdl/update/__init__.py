"""The check for newer versions, and what is said about them."""

OPT_OUT = "FDL_NO_UPDATE_CHECK"
"""The variable that switches the check off."""
