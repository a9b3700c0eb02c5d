"""Training: sample -> grade -> advantages -> score -> token weights -> update."""

# Tensors of a checkpoint's file, over all ranks. To write it, a rank holds its share three times in host memory. Here,
# where `plan` reads it without importing torch.
CHECKPOINT_FILE_BYTES = 2**30
