"""Vectorized environments: batched tensors in, batched tensors out."""

from sweepd.envs.support.mkl import request_mode
from sweepd.envs.support.openblas import request_one_thread

# The only import side effects in this project. MKL reads its mode at its first product, and OpenBLAS
# its threads when NumPy is imported, so both must be set before any module of sweepd computes. All
# other packages import this one.
request_mode()
request_one_thread()
