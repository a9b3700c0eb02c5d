"""Entropy control in other people's trainers; each module needs core, methods and its own trainer only."""
