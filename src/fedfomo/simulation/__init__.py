"""The simulator: whole federations on one machine's cores."""
