"""The commands of the command line; each module imports what is heavy only once its arguments are read."""
