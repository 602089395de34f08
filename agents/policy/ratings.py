"""Bradley-Terry ratings of players by their games against each other, with intervals.

Player i scores against player j with probability 1 / (1 + exp(b_j - b_i)), with strengths b (R. A.
Bradley and M. E. Terry 1952). A draw counts as half a win. Ratings are strengths on Elo's scale:
400 points are odds of ten to one.

`choix` fits this model, too, but one table of results at a time and without intervals; here, all
resampled tables are fitted at once.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
ELO = 400.0 / math.log(10.0)  # points per unit of strength
CONFIDENCE = 0.95
DRAWS, CHUNK = 2000, 1_000_000  # resampled tables; numbers of tables that are fitted at once
PRIOR = 0.5  # points added to both players of a pair: Jeffreys' prior of a share
_ITERATIONS, _PRECISION = 500, 1e-6
_SMALLEST = 1e-6  # points; smaller random numbers would only make the linear systems singular


@dataclass(frozen=True)
class Ratings:
    """Ratings of P players.

    Attributes:
        names: of the players.
        ratings: (P,), in Elo points; the anchor's, or their mean, is 0.
        low: (P,), lower ends of the intervals.
        high: (P,), upper ends.
        confidence: of the intervals.
        groups: names by group, best group first: the players of a group won every game against
            those of later groups. With more than one group, differences between groups have no
            upper limit: only the half win that is added to both players of each pair makes them
            finite.
    """

    names: tuple[str, ...]
    ratings: Floats
    low: Floats
    high: Floats
    confidence: float
    groups: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: by player, best first."""
        order = np.argsort(-self.ratings, kind="stable")
        return {
            "confidence": self.confidence,
            "players": {
                self.names[index]: {
                    "rating": float(self.ratings[index]),
                    "low": float(self.low[index]),
                    "high": float(self.high[index]),
                }
                for index in order
            },
            "groups": [list(group) for group in self.groups],
        }

    def table(self) -> str:
        """Return a text with a player per line, best first: name, rating, interval."""
        widest = max(map(len, self.names))
        head = f"{'':{widest}}  rating  {self.confidence:.0%} over deals"
        return "\n".join(
            [head]
            + [
                f"{self.names[index]:{widest}}  {self.ratings[index]:+6.0f}  "
                f"{self.low[index]:+.0f} … {self.high[index]:+.0f}"
                for index in np.argsort(-self.ratings, kind="stable")
            ]
        )


def rate(
    names: Sequence[str], points: Floats, *, anchor: str | None = None, seed: int = 0
) -> Ratings:
    """Return the ratings and their intervals.

    Ratings maximise the likelihood of all deals and of `PRIOR` more wins of both players of each
    pair. The intervals are quantiles of the Bayesian bootstrap (D. B. Rubin 1981) of the same
    estimate: every deal gets a weight from the exponential distribution, the same in all pairs, so
    results that have the deal's luck in common stay together, and the pseudo-counts get weights
    from the gamma distribution; if a deal were one game, the share of a pair would have the distribution of
    Jeffreys' interval, which has a width even if one player won all games.

    Args:
        names: of P players.
        points: (P, P, deals), the row player's points in a deal against the column player, from 0
            to 1; a pair that did not play is NaN. points[i, j] + points[j, i] is 1, and the
            diagonal is not read.
        anchor: the player whose rating is 0; None: the mean is 0.
        seed: of the resampling.

    Raises:
        InputError: the anchor is unknown, points are not of that form, or the games do not connect
            all players.
    """
    played = _check(names, points, anchor)
    filled = np.where(played[..., None], points, 0.0)
    table = filled.sum(-1)
    groups = _groups(table > 0.0)
    strengths = _fit((table + PRIOR * played)[None])[0]

    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(DRAWS, points.shape[-1]))
    # (DRAWS, P, P): one gamma number per ordered pair is one for either side of the pair.
    pseudo = np.maximum(rng.gamma(PRIOR, size=(DRAWS, len(names), len(names))), _SMALLEST) * played
    tables = np.einsum("bd,ijd->bij", weights, filled, optimize=True) + pseudo
    parts = -(-tables.size // CHUNK)
    resampled = np.concatenate([_fit(part) for part in np.array_split(tables, parts)])
    zero = 0.0 if anchor is None else strengths[names.index(anchor)]
    zeros = 0.0 if anchor is None else resampled[:, names.index(anchor), None]
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile((resampled - zeros) * ELO, [tail, 1.0 - tail], axis=0)
    ratings = (strengths - zero) * ELO
    named = tuple(tuple(names[index] for index in group) for group in groups)
    return Ratings(tuple(names), ratings, low, high, CONFIDENCE, named)


def _check(names: Sequence[str], points: Floats, anchor: str | None) -> NDArray[np.bool_]:
    """Return (P, P), the pairs that played; see `rate` for the errors."""
    count = len(names)
    if points.shape[:2] != (count, count) or points.ndim != 3 or not points.shape[-1]:
        raise InputError(
            f"points of {count} players must have the shape ({count}, {count}, deals), not "
            f"{points.shape}"
        )
    if anchor is not None and anchor not in names:
        raise InputError(f"the anchor {anchor!r} is not one of the players {', '.join(names)}")
    played = np.asarray(~np.isnan(points).any(-1) & ~np.eye(count, dtype=np.bool_))
    own = points[played]
    if not np.allclose(own + points.swapaxes(0, 1)[played], 1.0) or (own < 0.0).any():
        raise InputError("the points of both players of a game must be from 0 to 1 and sum to 1")
    reached = _reachable(played)[0]
    if not reached.all():
        one = ", ".join(name for name, found in zip(names, reached, strict=True) if found)
        other = ", ".join(name for name, found in zip(names, reached, strict=True) if not found)
        raise InputError(f"no games connect the players {one} with {other}: they have no ratings")
    return played


def _reachable(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return (P, P): whether a path of edges leads from i to j; always from i to i."""
    reach = edges | np.eye(len(edges), dtype=np.bool_)
    for _ in range(max(1, len(edges).bit_length())):  # paths double in length
        reach = (reach.astype(np.int64) @ reach) > 0
    return reach


def _groups(scored: NDArray[np.bool_]) -> list[list[int]]:
    """Return the strongly connected groups of "scored against", best first.

    Differences of ratings are finite within a group only (L. R. Ford 1957).
    """
    reach = _reachable(scored)
    mutual = reach & reach.T
    firsts = sorted(set(mutual.argmax(1).tolist()), key=lambda first: -int(reach[first].sum()))
    return [np.flatnonzero(mutual[first]).tolist() for first in firsts]


def _fit(tables: Floats) -> Floats:
    """Return (B, P) strengths with mean 0 that maximise the likelihood of (B, P, P) points.

    Newton's method on the concave log-likelihood. A step changes no difference of strengths by more
    than 1, which ensures that the likelihood increases: its third derivative is bounded by the
    second (F. Bach 2010, "Self-concordant analysis for logistic regression").
    """
    count = tables.shape[-1]
    games = tables + tables.swapaxes(-1, -2)
    strengths = np.zeros(tables.shape[:2])
    for _ in range(_ITERATIONS):
        shares = 1.0 / (1.0 + np.exp(strengths[:, None, :] - strengths[:, :, None]))
        slopes = (tables - games * shares).sum(-1)
        curves = games * shares * (1.0 - shares)
        # The graph's Laplacian, which is singular in the direction of equal changes. Adding 1/P
        # everywhere makes it regular and leaves the mean at 0.
        curved = np.eye(count) * curves.sum(-1)[:, None, :] - curves + 1.0 / count
        steps = np.linalg.solve(curved, slopes[..., None])[..., 0]
        largest = np.ptp(steps, axis=-1, keepdims=True)
        strengths += steps / np.maximum(1.0, largest)
        if largest.max() < _PRECISION:
            return np.asarray(strengths - strengths.mean(-1, keepdims=True))
    raise RunError("the ratings did not converge")


def write_ratings(path: Path, ratings: Ratings, title: str) -> None:
    """Write the picture of `draw_ratings`."""
    figure = draw_ratings(ratings, title)
    write_atomic(path, lambda target: figure.savefig(target, format="png"))


def draw_ratings(ratings: Ratings, title: str) -> Figure:
    """Draw the ratings and their intervals, best player on top."""
    from matplotlib.figure import Figure

    order = np.argsort(ratings.ratings, kind="stable")
    figure = Figure(figsize=(7.0, 1.6 + 0.36 * len(order)), dpi=100, layout="constrained")
    axes = figure.subplots()
    for row, index in enumerate(order):
        low, high = ratings.low[index], ratings.high[index]
        axes.plot([low, high], [row, row], color="tab:blue", linewidth=2.5, alpha=0.5)
        axes.plot([ratings.ratings[index]], [row], "o", color="tab:blue", markersize=6)
        axes.annotate(
            f"{round(ratings.ratings[index]):+d}",
            (ratings.ratings[index], row),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(order)), [ratings.names[index] for index in order], fontsize=8)
    axes.set_ylim(-0.6, len(order) - 0.2)
    axes.set_xlabel(
        f"Bradley-Terry rating in Elo points, {ratings.confidence:.0%} intervals", fontsize=8
    )
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3, axis="x")
    axes.set_title(title, fontsize=10)
    if len(ratings.groups) > 1:
        words = textwrap.wrap(separation_words(ratings.groups), 110)  # the width of the figure
        figure.supxlabel("\n".join(words), fontsize=7)
    return figure


def separation_words(groups: Sequence[Sequence[str]]) -> str:
    """Describe groups of which each won every game against the next; "" if there is one."""
    if len(groups) < 2:
        return ""
    best, rest = ", ".join(groups[0]), "the others"
    if len(groups) == 2:
        rest = ", ".join(groups[1])
    return (
        f"{best} won every game against {rest}: the distance has no upper limit; only the half "
        "win that is added to both players of each pair makes it finite"
    )
