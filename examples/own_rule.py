"""A rule of your own for the gate of games: a player's worst games must not be too bad.

PYTHONPATH=examples sweepd promote --rule 'own_rule:worst_games {"least": 50}' --dry-run
"""

import numpy as np

from sweepd.parts import GameEvidence, GateRule, Measured


def worst_games(least=0.0, share=0.1):
    """Return the rule.

    Args:
        least: the limit, which `--limit worst-games=NUMBER` changes, too.
        share: of the panel's games that are the worst ones.
    """

    def measure(evidence: GameEvidence) -> Measured:
        returns = np.sort(evidence.panel.episodes.returns, axis=None)
        worst = returns[: max(1, int(share * len(returns)))]
        said = f"mean return {worst.mean():.4g} in the worst {len(worst)} of {len(returns)} games"
        return Measured(float(worst.mean()), said)

    meaning = f"the mean return of the worst {share:.0%} of the games is high enough"
    return GateRule("worst-games", "panel", ">=", least, meaning, measure)
