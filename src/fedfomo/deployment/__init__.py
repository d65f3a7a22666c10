"""Real federations: the same methods, with Flower carrying the messages between organisations."""
