"""Write the tables of measured figures in `docs/` from the files in `scripts/bench/results/`.

    python -m scripts.result_tables

A table stands between `<!-- table NAME -->` and `<!-- end -->` (`TABLES` has the names), and ends
with a line that says on which machine, at which commit and with which peers it was measured. A test
compares the pages with the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.result_tables.arena import arena_days, arena_false
from scripts.result_tables.gate import (
    gate_holdout,
    gate_records,
    gate_searches,
    gate_selection,
    gate_stated_power,
    gate_studies,
)
from scripts.result_tables.gpu import gpu_envs, gpu_speed, gpu_steps, gpu_studies
from scripts.result_tables.learning import learning, learning_vs_sb3, pbt_hockey, search_replay
from scripts.result_tables.operation import (
    chaos,
    registry_chaos,
    simulation,
    soak,
    trader_chaos,
    trader_tracking,
)
from scripts.result_tables.results import ROOT
from scripts.result_tables.speed import (
    ask_time,
    env_steps,
    game_steps,
    gradient_steps,
    image_steps,
    pages_of,
    process_vec,
    recurrent_steps,
    roofline,
    search_vs_sb3,
    startup,
    train_vs_peers,
    trials_per_hour,
)
from scripts.result_tables.wild import wild

_MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TABLES: dict[str, Callable[[], str]] = {
    "arena-false": arena_false,
    "arena-days": arena_days,
    "train-crypto": partial(train_vs_peers, "crypto"),
    "train-cartpole": partial(train_vs_peers, "cartpole"),
    "jax-crypto": partial(train_vs_peers, "crypto", "train_vs_jax"),
    "jax-cartpole": partial(train_vs_peers, "cartpole", "train_vs_jax"),
    "leanrl-crypto": partial(train_vs_peers, "crypto", "train_vs_leanrl"),
    "leanrl-cartpole": partial(train_vs_peers, "cartpole", "train_vs_leanrl"),
    "search-vs-sb3": search_vs_sb3,
    "trials-per-hour": trials_per_hour,
    "roofline": roofline,
    "gradient-steps": gradient_steps,
    "recurrent-steps": recurrent_steps,
    "image-steps": image_steps,
    "env-steps": env_steps,
    "process-vec": process_vec,
    "game-steps": game_steps,
    "learning": learning,
    "learning-vs-sb3": learning_vs_sb3,
    "pbt-hockey": pbt_hockey,
    "registry-chaos": registry_chaos,
    "chaos": chaos,
    "simulation": simulation,
    "trader-chaos": trader_chaos,
    "trader-tracking": trader_tracking,
    "startup": startup,
    "soak": soak,
    "ask-time": ask_time,
    "search-replay": search_replay,
    "gate-records": gate_records,
    "gate-level": partial(gate_searches, skilled=False),
    "gate-power": partial(gate_searches, skilled=True),
    "gate-selection": gate_selection,
    "gate-holdout": gate_holdout,
    "gate-stated-power": gate_stated_power,
    "gate-studies": gate_studies,
    "dashboard-pages": partial(pages_of, "dashboard_pages"),
    "study-pages": partial(pages_of, "study_pages"),
    "gpu-steps": gpu_steps,
    "gpu-speed": partial(gpu_speed, "speed"),
    "gpu-off-policy": partial(gpu_speed, "off-policy"),
    "gpu-envs": gpu_envs,
    "gpu-studies": gpu_studies,
    "wild": wild,
}


def filled(text: str) -> str:
    """Return a page with its tables made from the results.

    Raises:
        KeyError: the page names a table that does not exist.
    """
    return _MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def pages() -> list[Path]:
    """Return the pages with generated tables."""
    files = sorted((ROOT / "docs").rglob("*.md"))
    return [path for path in files if _MARKED.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    """Write the pages."""
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
