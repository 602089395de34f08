"""Tables of speeds on a GPU."""

from __future__ import annotations

from typing import Any

from scripts.result_tables.results import load, origin, table


def gpu_steps() -> str:
    """Time of a rollout step and a gradient step on a GPU."""
    part = load("gpu")["parts"]["steps"]
    steps = "microseconds_per_rollout_step", "microseconds_per_gradient_step"
    rows = [
        [row["members"], row["kind"], *(f"{row[step]:,.0f} µs" for step in steps)]
        for row in part["found"]["rows"]
    ]
    head = ["members", "how", "rollout step", "gradient step"]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_speed(name: str) -> str:
    """Speed of whole training on a GPU, by program and members."""
    part = load("gpu")["parts"][name]
    rows = [
        [
            f"{cell['algorithm']}, {cell['env']}",
            _network(cell),
            cell["minibatch"],
            cell["num_envs"],
            cell["members"],
            *(f"{row['per_second'][kind]:,.0f}" for kind in row["per_second"]),
        ]
        for row in part["found"]
        for cell in [row["cell"]]
    ]
    head = ["program", "network", "minibatch", "envs", "members", *part["found"][0]["per_second"]]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_envs() -> str:
    """Steps of environments alone on a GPU."""
    part = load("gpu")["parts"]["envs"]
    speeds: dict[str, list[str]] = {}
    for row in part["found"]:
        shown = f"{row['steps_per_second']:,.0f} ({row['rows']:,})"
        speeds.setdefault(row["env"], []).append(shown)
    rows = [[name, *found] for name, found in speeds.items()]
    head = ["environment", "steps/s (rows)", "", ""]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_studies() -> str:
    """Time of 500 trials on a GPU, extrapolated."""
    parts, tf32 = load("gpu")["parts"], load("gpu_tf32")["parts"]["large"]
    studies = [("standard", row) for row in parts["standard"]["found"]["rows"]]
    for part in (parts["large"], tf32):
        found = part["found"]
        studies.append(
            (f"large, {found['precision']}: {found['share_of_peak']:.0%} of peak", found)
        )
    rows = []
    for name, row in studies:
        minutes, evaluation = (60 * row[key] for key in _HOURS)
        speeds = f"{row['steps_per_second']:,.0f}", f"{minutes:.1f} min", f"{evaluation:.1f} min"
        rows.append([name, row["cell"]["members"], _network(row["cell"]), *speeds])
    head = ["study", "members", "network", "steps/s", "500 trials", "of which evaluation"]
    machines = parts["standard"]["machine"], parts["large"]["machine"], tf32["machine"]
    return table(head, rows) + origin("gpu", *machines)


_HOURS = "hours_for_500_trials", "of_which_evaluation"


def _network(cell: dict[str, Any]) -> str:
    return f"{cell['width']}×{cell['width']}"
