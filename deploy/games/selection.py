"""The configuration that a study selected: the value it was selected by, and that on fresh seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweepd.deploy.promotion.studies import GateStudy
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.formatting import counted
from sweepd.optimize.study.record.configurations import value_words
from sweepd.optimize.study.record.fresh import fresh_seeds


def selection_of(study: GateStudy) -> dict[str, Any] | None:
    """Describe the best configuration of a study on a game of one player.

    Returns:
        See `Configuration.to_dict`, and `fresh`: None, or the `FreshSeeds` of a training run with
        other seeds, as a dict. None in other games, and without a complete trial.
    """
    game, best = get_game(study.spec.environment), study.spec.selection.best(study.complete)
    if best is None or game.seats(game.params(**study.spec.env)) != 1:
        return None
    fresh = fresh_seeds(study, best)
    return best.to_dict(study.spec.solved) | {"fresh": None if fresh is None else fresh.to_dict()}


def selection_sentence(selection: Mapping[str, Any]) -> str:
    """Return the result of `selection_of` in a sentence."""
    count = len(selection["trials"])
    by = f"the mean of {count} trials" if count > 1 else "the value of one trial"
    text = f"Its configuration was selected by {by}, {value_words(selection)}"
    if second := selection["second"]:
        text += f", difference to the second best {second['between']}"
    text += "; on "
    fresh = selection["fresh"]
    if fresh is None:
        return text + "fresh seeds it was not measured."
    seeds = counted(fresh["seeds"], "fresh seed")
    text += f"{seeds}, its {fresh['average']} is {value_words(fresh)}."
    return text + (f" Warning: {fresh['warning']}." if fresh["warning"] else "")
