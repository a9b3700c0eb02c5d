"""Toy models, pretrained models, and the directories that hold either."""
