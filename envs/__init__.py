"""Vectorized environments: batched tensors in, batched tensors out."""

if __name__ != "sweepd.envs":  # a second name would give every class a second identity
    raise ImportError("this folder is the package sweepd.envs: import it by that name")
