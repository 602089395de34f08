"""Figures of a study's trials: parallel coordinates, and score against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.dashboard.figures import Figure

Found = Mapping[str, Any]
GUTTER = -0.1  # where lines pass that have no value on an axis
# Of complete trials by band, then of the others: tone, width, dash, name.
BAND_LOOKS = (
    ("band0", 1.2, "solid", "best 5%"),
    ("band1", 1.0, "solid", "next 20%"),
    ("band2", 0.9, "solid", "next 25%"),
    ("band3", 0.8, "solid", "lower half"),
)
OTHER_LOOKS = {"PRUNED": ("cash", 0.8, "dot", "pruned"), "FAIL": ("bad", 1.0, "dash", "failed")}


def number(value: Any) -> str:
    """Return a parameter's value: floats with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parallel_figure(found: Found, objective: str, count: int) -> Figure:
    """Return parallel coordinates: one row per axis, the objective's first.

    Plotly's `parcoords` needs WebGL and code made at run time, which the page's security policy
    forbids; these are ordinary lines.

    Args:
        found: result of `optimize.study.insight.parameters.parallel`.
        objective: the objective's name.
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
    best = max(lines, key=_value, default=None)
    if best is not None and best["band"] is not None:
        looks.append((("equal", 3.0, "solid", f"trial {best['trial']}"), [best]))
    data = [_band_trace(part, axes, look) for look, part in looks if part]
    rows = len(axes) + 1
    return {
        "data": data,
        "layout": {
            "xaxis": {"visible": False, "range": [GUTTER - 0.05, 1.05], "fixedrange": True},
            "yaxis": {"visible": False, "range": [0.5 - rows, 0.6], "fixedrange": True},
            "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
            "hovermode": "closest",
            "dragmode": False,
            "showlegend": False,
            "shapes": [_rail(row) for row in range(rows)],
            "annotations": [
                *_objective_texts(found["objective"], objective),
                *(text for row, axis in enumerate(axes, 1) for text in _axis_texts(axis, row)),
            ],
        },
    }


def _value(line: Found) -> float:
    value = line["value"]
    return float("-inf") if value is None else float(value)


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
        texts.append(name if at is None else f"{line['value']:+.4g}")
        for axis, place, off in zip(axes, line["places"], line["off"], strict=False):
            x.append(round(place, 4) if place is not None else GUTTER if off else None)
            texts.append("off" if off else number(line["params"][axis["name"]]))
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


def _objective_texts(ends: Found, objective: str) -> list[Figure]:
    low = f"{'≤ ' if ends['cut'] else ''}{ends['low']:+.4g}"
    return [
        _text(0.0, 0, f"<b>{objective}</b>", "left", True),
        _text(0.0, 0, low, "left", False),
        _text(1.0, 0, f"{ends['high']:+.4g}", "right", False),
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


def frontier_figure(found: Found, objective: str) -> Figure:
    """Return score against cost, and the frontier.

    Args:
        found: result of `optimize.study.insight.parameters.frontier`.
        objective: the objective's name.
    """
    points, front = found["points"], found["front"]
    seconds = [point["seconds"] for point in points]
    # On a linear axis, many cheap trials would be one line.
    log = bool(seconds) and max(seconds) > 10.0 * min(seconds)
    hover = "trial %{text}: %{y:+.4g} after %{x:.4g} s<extra></extra>"
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
            "yaxis": {"title": {"text": objective}},
            "hovermode": "closest",
            "margin": {"l": 56, "r": 12, "t": 28, "b": 44},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        },
    }
