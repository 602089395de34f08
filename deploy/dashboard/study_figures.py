"""Figures of a study's trials: parallel coordinates, and objective against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.deploy.dashboard.figures import Figure
from sweepd.envs.support.formatting import value_text

Found = Mapping[str, Any]
# The page's place for legends is where these figures have the title of their axis.
LEGEND_ABOVE = {
    "margin": {"l": 56, "r": 12, "t": 28, "b": 44},
    "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
}
GUTTER = -0.1  # where lines pass that have no value on an axis
# Of complete trials by band, then of the others: tone, width, dash, name.
BAND_LOOKS = (
    ("band0", 1.2, "solid", "best 5%"),
    ("band1", 1.0, "solid", "next 20%"),
    ("band2", 0.9, "solid", "next 25%"),
    ("band3", 0.8, "solid", "lower half"),
)
OTHER_LOOKS = {"PRUNED": ("cash", 0.8, "dot", "pruned"), "FAIL": ("bad", 1.0, "dash", "failed")}


def parallel_figure(found: Found, count: int) -> Figure:
    """Return parallel coordinates: one row per axis, the objective's first.

    Plotly's `parcoords` needs WebGL and code made at run time, which the page's security policy
    forbids; these are ordinary lines.

    Args:
        found: result of `sweepd.optimize.study.insight.parameters.parallel`.
        count: number of parameters to show.
    """
    axes = found["axes"][:count]
    lines = found["lines"]
    looks = [
        (look, [line for line in lines if line["state"] == state])
        for state, look in OTHER_LOOKS.items()
    ]
    looks += [
        (look, [line for line in lines if line["band"] == band])
        for band, look in reversed(list(enumerate(BAND_LOOKS)))
    ]
    best = next((line for line in lines if line["trial"] == found["selected"]), None)
    if best is not None:
        looks.append((("equal", 3.0, "solid", f"trial {best['trial']}"), [best]))
    data = [_band_trace(part, axes, look) for look, part in looks if part]
    rows = len(axes) + 1
    # Without lines there, the place is the rows'.
    left = GUTTER - 0.05 if any(GUTTER in trace["x"] for trace in data) else -0.02
    return {
        "data": data,
        "layout": {
            "xaxis": {"visible": False, "range": [left, 1.05], "fixedrange": True},
            "yaxis": {"visible": False, "range": [0.5 - rows, 0.6], "fixedrange": True},
            "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
            "hovermode": "closest",
            "dragmode": False,
            "showlegend": False,
            "shapes": [_rail(row) for row in range(rows)],
            "annotations": [
                *_objective_texts(found["objective"]),
                *(text for row, axis in enumerate(axes, 1) for text in _axis_texts(axis, row)),
            ],
        },
    }


def _band_trace(
    lines: Sequence[Found], axes: Sequence[Found], look: tuple[str, float, str, str]
) -> Figure:
    """Return all lines of one look as one trace, with gaps between them."""
    tone, width, dash, name = look
    x: list[float | None] = []
    y: list[float | None] = []
    trials: list[int | None] = []
    texts: list[str | None] = []
    for line in lines:
        at = line["at"]
        x.append(GUTTER if at is None else round(at, 4))
        texts.append(name if at is None else f"{line['value']:+.4f}")
        for axis, place, off in zip(axes, line["places"], line["off"], strict=False):
            x.append(round(place, 4) if place is not None else GUTTER if off else None)
            texts.append("off" if off else value_text(line["params"][axis["name"]]))
        x.append(None)
        y += [*(-row for row in range(len(axes) + 1)), None]
        trials += [line["trial"]] * (len(axes) + 2)
        texts.append(None)
    return {
        "type": "scatter",
        "mode": "lines",
        "tone": tone,
        "name": name,
        "x": x,
        "y": y,
        "customdata": trials,
        "text": texts,
        "hovertemplate": "trial %{customdata}: %{text}<extra>" + name + "</extra>",
        "line": {"width": width, "dash": dash},
        "opacity": 0.85,
    }


def _rail(row: int) -> Figure:
    return {
        "type": "line",
        "layer": "below",
        "x0": 0.0,
        "x1": 1.0,
        "y0": -row,
        "y1": -row,
        "line": {"color": "tone:edge-strong", "width": 1},
    }


def _text(x: float, row: int, text: str, anchor: str, above: bool) -> Figure:
    return {
        "x": x,
        "y": -row,
        "text": text,
        "xanchor": anchor,
        "yanchor": "bottom" if above else "top",
        "yshift": 2 if above else -2,
        "showarrow": False,
        "bgcolor": "tone:paper",
        "borderpad": 1,
        "opacity": 0.9,
    }


def _objective_texts(ends: Found) -> list[Figure]:
    low = f"{'≤ ' if ends['cut'] else ''}{ends['low']:+.4f}"
    return [
        _text(0.0, 0, "<b>objective</b>", "left", True),
        _text(0.0, 0, low, "left", False),
        _text(1.0, 0, f"{ends['high']:+.4f}", "right", False),
    ]


def _axis_texts(axis: Found, row: int) -> list[Figure]:
    scale = " (log)" if axis["log"] else ""
    found = [_text(0.0, row, f"<b>{axis['name']}</b>{scale}", "left", True)]
    if axis["choices"]:
        last = max(1, len(axis["choices"]) - 1)
        for index, choice in enumerate(axis["choices"]):
            anchor = "left" if index == 0 else "right" if index == last else "center"
            found.append(_text(index / last, row, str(choice), anchor, False))
    else:
        found.append(_text(0.0, row, f"{axis['low']:.4g}", "left", False))
        found.append(_text(1.0, row, f"{axis['high']:.4g}", "right", False))
    if axis["switched"]:
        found.append(_text(GUTTER, row, "off", "center", False))
    return found


def frontier_figure(found: Found) -> Figure:
    """Return objective against cost, and the frontier.

    Args:
        found: result of `sweepd.optimize.study.insight.parameters.frontier`.
    """
    points, front = found["points"], found["front"]
    seconds = [point["seconds"] for point in points]
    # On a linear axis, many cheap trials would be one line.
    log = bool(seconds) and max(seconds) > 10.0 * min(seconds)
    hover = "trial %{text}: %{y:+.4f} after %{x:.4g} s<extra></extra>"
    data = [
        {
            "type": "scatter",
            "mode": mode,
            "tone": tone,
            "name": name,
            "x": [one["seconds"] for one in part],
            "y": [one["value"] for one in part],
            "text": [str(one["trial"]) for one in part],
            "hovertemplate": hover,
            "marker": {"size": size},
            "line": {"shape": "hv", "width": 2.0},
        }
        for name, mode, tone, size, part in (
            ("a trial", "markers", "cash", 5, points),
            ("frontier", "lines+markers", "account", 8, front),
        )
    ]
    return {
        "data": data,
        "layout": {
            "xaxis": {
                "type": "log" if log else "linear",
                "title": {"text": "training time of the trial, s"},
            },
            "yaxis": {"title": {"text": "objective"}},
            "hovermode": "closest",
            **LEGEND_ABOVE,
        },
    }


def values_figure(found: Found) -> Figure:
    """Return the first two values of complete trials, and the frontier.

    Args:
        found: result of `sweepd.optimize.study.insight.watch.values_view`.
    """
    front = sorted(found["frontier"], key=lambda point: point["values"][1])
    on_it = {point["trial"] for point in front}
    points = found["points"]
    parts = (
        ("breaks a constraint", "markers", "bad", 6, [p for p in points if not p["feasible"]]),
        (
            "a trial",
            "markers",
            "cash",
            6,
            [p for p in points if p["feasible"] and p["trial"] not in on_it],
        ),
        ("frontier", "lines+markers", "account", 8, front),
        ("selected", "markers", "equal", 13, [p for p in front if p["trial"] == found["chosen"]]),
    )
    data = [
        {
            "type": "scatter",
            "mode": mode,
            "tone": tone,
            "name": name,
            "x": [point["values"][1] for point in part],
            "y": [point["values"][0] for point in part],
            "text": [str(point["trial"]) for point in part],
            "hovertemplate": "trial %{text}: %{y:+.4f}, %{x:+.4f}<extra></extra>",
            "marker": {"size": size},
            "line": {"width": 1.0, "dash": "dot"},
        }
        for name, mode, tone, size, part in parts
        if part
    ]
    first, second = (f"{one['name']} ({one['direction']})" for one in found["values"][:2])
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": second}},
            "yaxis": {"title": {"text": first}},
            "hovermode": "closest",
            **LEGEND_ABOVE,
        },
    }


CURVE_TONES = ("account", "equal", "rival0", "rival1", "rival2", "rival3")
CURVE_DASHES = ("solid", "dash", "dot", "dashdot", "solid", "dash")
CURVE_LOOKS = tuple(zip(CURVE_TONES, CURVE_DASHES, strict=True))


def curve_figure(curves: Sequence[Found], axis: str, member: str) -> Figure:
    """Return learning curves: the value at each rung, bars over the members, and evaluations beside.

    Args:
        curves: results of `sweepd.optimize.study.insight.curves.curve`.
        axis: what the values are.
        member: "fold" or "seed".
    """
    data: list[Figure] = []
    for index, found in enumerate(curves):
        points = [point for point in found["points"] if point["value"] is not None]
        tone, dash = CURVE_LOOKS[index % len(CURVE_LOOKS)]
        spread = all("low" in point for point in points)
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, point["high"] - point["value"]) for point in points if spread],
            "arrayminus": [max(0.0, point["value"] - point["low"]) for point in points if spread],
            "color": f"tone:{tone}",
            "thickness": 1,
            "width": 4,
        }
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "tone": tone,
                "name": f"trial {found['trial']}",
                "x": [point["steps"] for point in points],
                "y": [point["value"] for point in points],
                "error_y": bars | {"visible": spread},
                "line": {"width": 2.0, "dash": dash},
                "marker": {"size": 7},
                "hovertemplate": "%{x:,} steps: %{y:+.4f}",
            }
        )
        if found["beside"]:
            data.append(_beside(found["beside"], tone, f"trial {found['trial']}, beside rungs"))
    return _by_steps(data, axis, member)


def member_figure(found: Found, axis: str, member: str) -> Figure:
    """Return the learning curve of every member, and their mean as a thick line.

    Args:
        found: result of `sweepd.optimize.study.insight.curves.member_curves`.
        axis: what the values are.
        member: "fold" or "seed".
    """
    lines = [(line["name"], "cash", 1.0, line["points"]) for line in found["lines"]]
    if len(lines) > 1:
        lines.append(("mean", "account", 3.0, found["mean"]))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "tone": tone,
            "name": name,
            "x": [point["steps"] for point in points],
            "y": [point["value"] for point in points],
            "line": {"width": width},
            "marker": {"size": 4 + width},
            "hovertemplate": "%{x:,} steps: %{y:+.4f}",
        }
        for name, tone, width, points in lines
    ]
    data += [
        _beside(one["points"], "account", f"trial {one['trial']}, beside rungs")
        for one in found["beside"]
    ]
    return _by_steps(data, axis, member)


def _beside(points: Sequence[Found], tone: str, name: str) -> Figure:
    """Return the evaluations beside rungs as a thin line of small points."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "tone": tone,
        "name": name,
        "x": [point["steps"] for point in points],
        "y": [point["value"] for point in points],
        "line": {"width": 1.0, "dash": "dot"},
        "marker": {"size": 4},
        "hovertemplate": "%{x:,} steps: %{y:+.4f}",
    }


def _by_steps(data: list[Figure], axis: str, member: str) -> Figure:
    """Return a figure of traces over the steps of a member. axis, member: see `member_figure`."""
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": f"environment steps per {member}"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": axis}},
            "hovermode": "closest",
            "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
            "showlegend": False,
        },
    }


# Units of a time in hours: name, factor, and the least number of hours that they are used for.
TIME_UNITS = (
    ("days", 1 / 24, 72.0),
    ("hours", 1.0, 3.0),
    ("minutes", 60.0, 0.05),
    ("seconds", 3600.0, 0.0),
)


def _best_title(objectives: Sequence[str], index: int) -> str:
    # One objective is named above the figure; of two, each axis says which is its own.
    which = f" ({objectives[index]})" if len(objectives) > 1 else ""
    return f"best objective so far{which}"


def race_figure(sides: Sequence[Found], by: str) -> Figure:
    """Return the best values so far of two studies.

    Args:
        sides: results of `sweepd.optimize.study.insight.watch.StudyInsight.compared`.
        by: "finished" (number of finished trials) or "hours" (since the first trial began).
    """
    title, factor = "finished trials", 1.0
    if by == "hours":
        longest = max(point[by] for side in sides for point in side["so_far"])
        unit, factor = next(
            (unit, factor) for unit, factor, least in TIME_UNITS if longest >= least
        )
        title = f"{unit} since the first trial began"
    objectives = list(dict.fromkeys(side["head"]["objective"] for side in sides))
    data: list[Figure] = []
    for index, side in enumerate(sides):
        tone, dash = CURVE_LOOKS[index]
        own = objectives.index(side["head"]["objective"])
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "tone": tone,
                "name": side["head"]["study"],
                "x": [round(factor * point[by], 3) for point in side["so_far"]],
                "y": [point["value"] for point in side["so_far"]],
                "text": [f"trial {point['trial']}" for point in side["so_far"]],
                "yaxis": "y2" if own else "y",
                "line": {"shape": "hv", "width": 2.2, "dash": dash},
                "marker": {"size": 5},
                "hovertemplate": "%{text}: %{y:+.4f}",
            }
        )
    layout: Figure = {
        "xaxis": {"title": {"text": title}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": _best_title(objectives, 0)}},
        "hovermode": "closest",
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "showlegend": False,
    }
    if len(objectives) > 1:  # values of two objectives have no common axis
        layout["yaxis2"] = {
            "title": {"text": _best_title(objectives, 1)},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
        }
        layout["margin"] = {"l": 56, "r": 56, "t": 8, "b": 44}
    return {"data": data, "layout": layout}
