"""The paper's mathematics: tensors in, tensors out. Nothing here knows a model, a method, a config or a file."""
