"""Experiments behind published numbers; they run in a clone and are not part of the installed package."""
