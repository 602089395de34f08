"""Bundles, the promotion gate, the registry and the paper trader. Paper only."""

import sweepd.envs  # noqa: F401  # sets MKL's reproducible mode before the first product
