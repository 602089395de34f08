"""Vectorized environments: batched tensors in, batched tensors out."""

from envs.support.mkl import request_mode

# The one side effect at import in this project: MKL reads the mode at its first product, so it must be set before any
# other module of sweepd's computes one. The other packages import this one for it.
request_mode()
