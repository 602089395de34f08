"""Vectorized environments: batched tensors in, batched tensors out."""

from envs.support.mkl import request_mode

# The only import side effect in this project. MKL reads its mode at its first product, so the mode
# must be set before any module of sweepd computes one. All other packages import this one.
request_mode()
