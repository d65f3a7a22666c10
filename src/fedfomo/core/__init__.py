"""What a method is written in: models as vectors, data, local training, messages, the round."""
