"""The settings that only studies on a game have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sweepd.envs.games.curriculum import MOST_PAST
from sweepd.optimize.study.record.specs import Play
from sweepd.optimize.study.settings.seeds import SeedSettings
from sweepd.optimize.study.settings.setting import Panel, Setting


@dataclass(frozen=True)
class GameSettings(SeedSettings):
    """Settings that only studies on a game have."""

    episodes: Annotated[
        int,
        Setting(
            Panel.ENVIRONMENT,
            "Games: evaluation episodes per member; an eighth at rungs that the search does not "
            "use. 0: in games of one player, as many as a short training with several seeds asks "
            "for (see docs/explanation/intervals.md), else 32.",
            min=0,
            fixes="episodes",
            automatic=0,
            least=0,
            most=10**6,
            in_space=True,
        ),
    ] = 0
    own_episodes: Annotated[
        bool,
        Setting(
            Panel.ENVIRONMENT,
            "Games: every seed is judged by episodes of its own, as training runs (sweepd run "
            "--trial) do; by default all seeds and trials play the same ones, which compares them "
            "best.",
            fixes="own_episodes",
        ),
    ] = False
    async_envs: Annotated[
        int,
        Setting(
            Panel.ENVIRONMENT,
            "Environments of others that are stepped one by one, with --algo ppo: those that are "
            "ready first go on first. K: K times as many environments as --n-envs, whose steps in "
            "each rollout are recorded; 1: with the same results as 0, in which all wait for the "
            "slowest one in every step. See docs/how_to/async_envs.md.",
            min=0,
            fixes="async_envs",
            least=0,
            most=16,
        ),
    ] = 0
    look_steps: Annotated[
        int,
        Setting(
            Panel.ENVIRONMENT,
            "Games: steps of random play in each of 16 environments, which determine the "
            "observation normalizer. 0: 256, or as many as fit into 5 seconds.",
            min=0,
            fixes="look_steps",
            automatic=0,
            least=0,
            most=10**6,
        ),
    ] = 0
    play: Annotated[
        Play | None,
        Setting(
            Panel.ENVIRONMENT,
            "Games with --algo ppo: whether members are judged by their most probable actions, or "
            "by actions drawn from their policies, as mixed strategies need. Promotion follows. "
            "Default: that of the search space, else deterministic.",
            fixes="play",
            in_space=True,
        ),
    ] = None
    scenario: Annotated[
        str | None,
        Setting(
            Panel.ENVIRONMENT,
            "bucket-brigade: name of a scenario; a mixture of several, from which each game's is "
            "drawn by shares, e.g. easy=0.5,hard=0.5; or all for one study per scenario.",
        ),
    ] = None
    env_param: Annotated[
        list[str] | None,
        Setting(
            Panel.ENVIRONMENT,
            "Games: NAME=VALUE, a parameter that all trials share; may be repeated.",
        ),
    ] = None
    wrappers: Annotated[
        list[str] | None,
        Setting(
            Panel.ENVIRONMENT,
            'Environments of others: a wrapper with its arguments, such as \'one-hot {"key": '
            '"image"}\' or MODULE:NAME; may be repeated, the innermost first. See docs/how_to/vectorization.md.',
            "--wrapper",
        ),
    ] = None
    roles: Annotated[
        str | None,
        Setting(
            Panel.ENVIRONMENT,
            "PettingZoo environments: one policy per role, such as 'hunter=wolf_*;prey=hare_0'. "
            "Default: one policy for all agents, trained for the sum of their rewards. See "
            "docs/how_to/agents.md.",
        ),
    ] = None
    opponents: Annotated[
        str | None,
        Setting(
            Panel.ENVIRONMENT,
            "Tensor games of two seats: whom a member plays against, with shares that add up "
            "to 1, e.g. weak=0.5,self=0.5: the game's scripted players, self (its present policy), "
            "past (its earlier selves), others (the trial's other members), league (the best members "
            "of the study's complete trials, in equilibrium; also alone, without a share), "
            "bundle:NAME (a champion), or the path of a bundle; none: the present policy sits at all seats. Default: "
            "those of the search space, else none.",
        ),
    ] = None
    phases: Annotated[
        str | None,
        Setting(
            Panel.ENVIRONMENT,
            "Games: a TOML file with [[phases]] of the training, or a JSON list of phases. A search "
            "space may contain them instead. See docs/how_to/phases.md.",
        ),
    ] = None
    past_interval: Annotated[
        int | None,
        Setting(
            Panel.ENVIRONMENT,
            "Rollouts between two snapshots of a member for the opponent past. Default: 10.",
            most=10**9,
        ),
    ] = None
    past_size: Annotated[
        int | None,
        Setting(
            Panel.ENVIRONMENT,
            "Snapshots that a member keeps for the opponent past; the oldest is replaced. "
            "Default: 8.",
            most=MOST_PAST,
        ),
    ] = None
