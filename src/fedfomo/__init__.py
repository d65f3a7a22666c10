"""Personalised federated learning: every client federates with the clients that help it."""
