"""Training: sample -> grade -> advantages -> score -> token weights -> update."""

# Bytes of tensors per checkpoint file, over all ranks. To write a file, a rank holds its share three times in host
# memory. Defined here so that `plan` can read it without importing torch.
CHECKPOINT_FILE_BYTES = 2**28
