"""The memory, time and disk space that a scale needs, computed from its config."""
