"""Times of the dashboard's pages, for the benchmarks that make something to show."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from werkzeug.test import Client


def page_times(client: Client, page: str, path: str, requests: int) -> dict[str, Any]:
    """Request a page again and again, without a socket.

    Returns:
        page; first, median and p95 (of the later requests): milliseconds of processor time of the
        thread that answers, on which other processes have little influence; kB: the page's size.
    """
    times = []
    for _ in range(requests + 1):
        began = time.thread_time()
        answer = client.get(path, headers={"Host": "127.0.0.1"})
        content = answer.get_data()
        times.append(1000.0 * (time.thread_time() - began))
        assert answer.status_code == 200, (path, answer.status_code)
    middle, high = np.quantile(times[1:], (0.5, 0.95))
    kilobytes = len(content) / 1000.0
    row = {"first": times[0], "median": float(middle), "p95": float(high), "kB": kilobytes}
    print(
        f"{page:36s}" + "".join(f" {name} {value:6.1f}" for name, value in row.items()), flush=True
    )
    return {"page": page, **row}
