"""Your own model and data: `federate`, readers for site folders, checks."""
