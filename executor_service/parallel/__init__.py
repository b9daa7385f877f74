"""Tensor parallelism: one executor, several processes, each with a part of the model and of the KV cache."""
