"""Vectorized environments: batched tensors in, batched tensors out."""
