"""Federations across organisations: the same methods, with Flower as the transport."""
