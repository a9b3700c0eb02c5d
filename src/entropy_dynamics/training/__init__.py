"""Training: sample -> grade -> advantages -> score -> weigh -> update."""
