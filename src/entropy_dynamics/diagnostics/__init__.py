"""Commands on files of any trainer: pass-at-k, lens and entropy-watch (docs/diagnostics.md)."""
