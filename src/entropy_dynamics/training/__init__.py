"""Training: sample -> grade -> advantages -> score -> token weights -> update."""
