"""Entropy control in third-party trainers. Each module needs only core, methods and its own trainer."""
