"""How the latent groups that ship with the library were made: VGG-11, PCA and K-Means, as in the paper's appendix."""
