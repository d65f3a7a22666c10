"""Latent groups of images, built from the features of a network that was trained on ImageNet."""
