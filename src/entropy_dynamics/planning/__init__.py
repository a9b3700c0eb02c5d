"""Memory, time and disk that a scale needs, computed from its config."""
