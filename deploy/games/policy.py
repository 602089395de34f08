"""The policy of a trial on a game, as it acts and is evaluated in Python."""

from __future__ import annotations

import pandas as pd

from sweepd.deploy.games.duel_panel import DuelGames
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.games.player import Network, Player, Team
from sweepd.deploy.promotion.gate import TrialPolicy
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.registry import get_game
from sweepd.envs.gymnasium_view import codec_of
from sweepd.optimize.study.record.specs import GameSpec


def codec(policy: TrialPolicy) -> SpaceCodec:
    """The spaces of the game, as it was evaluated."""
    game = get_game(policy.spec.environment)
    return codec_of(game, game.params(**policy.spec.env))


def evaluate(policy: TrialPolicy, games: int, seed: int) -> pd.DataFrame:
    """Score a policy in games, see `sweepd.evaluate`."""
    assert isinstance(policy.spec, GameSpec)
    spec, seed = policy.spec, derive_seed(seed, "evaluate")
    game = get_game(spec.environment)
    params = game.params(**spec.env)  # as in promotion
    sampled = spec.play == "sampled"
    player: Player = Network(policy.acting, sampled=sampled)
    if policy.seats:
        used = sorted(set(policy.seats))
        networks = [Network(policy.members[index], sampled=sampled) for index in used]
        player = Team(networks, [used.index(index) for index in policy.seats])
    if game.versus is not None and is_versus(game, params):
        names, found = DuelGames(game, params, games, seed).play_baselines(player)
        rows = []
        for name, points, lengths in zip(names, found.points, found.lengths, strict=True):
            shares = [float((points == outcome).mean()) for outcome in (1.0, 0.5, 0.0)]
            rows.append(
                {
                    "opponent": name,
                    "games": points.size,
                    "points": float(points.mean()),
                    **dict(zip(("won", "drawn", "lost"), shares, strict=True)),
                    "length": float(lengths.mean()),
                }
            )
        return pd.DataFrame(rows)
    episodes = PanelGames(game, params, games, seed).play_player(player)
    returns = episodes.returns[0]
    return pd.DataFrame(
        [
            {
                "games": returns.size,
                "mean": float(returns.mean()),
                "deviation": float(returns.std(ddof=1)),
                "worst": float(returns.min()),
                "length": float(episodes.lengths.mean()),
            }
        ]
    )
