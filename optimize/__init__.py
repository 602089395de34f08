"""The search daemon: trials on a SQL study, trained in batches."""

import sweepd.envs  # noqa: F401  # sets MKL's reproducible mode before the first product
