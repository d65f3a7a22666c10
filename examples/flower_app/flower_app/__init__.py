"""A plain Flower app on handwritten digits; the lines that make it FedFomo are marked."""
