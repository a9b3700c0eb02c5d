"""Entropy dynamics in reinforcement fine-tuning (arXiv 2602.03392), reproduced."""
