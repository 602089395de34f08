"""Populations of policies trained as one batched program, and frozen policies."""

import sweepd.envs  # noqa: F401  # sets MKL's reproducible mode before the first product
