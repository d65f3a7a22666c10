"""Differential privacy: noisy training, noisy evaluation, and the accounting for both."""
