"""Differential privacy: noisy training, noisy judgement, and the bill for both."""
