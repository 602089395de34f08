"""Pages of 2 MB for torch's large tensors on Linux.

Gradient steps read rows from anywhere in a rollout, which with pages of 4 KB miss the processor's
table of pages (3 to 15% of the time of training). Where the kernel has no such pages to give, tensors
are as before.
"""

from __future__ import annotations

import os

VARIABLE = "THP_MEM_ALLOC_ENABLE"  # torch reads it at its first tensor


def request_huge_pages() -> None:
    """Request large pages, before torch is imported. The user's own choice stays."""
    os.environ.setdefault(VARIABLE, "1")
