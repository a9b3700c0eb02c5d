"""Figures: drawing, no statistics."""
