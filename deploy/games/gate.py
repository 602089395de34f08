"""The gate of games: the best trial's team or best member is evaluated on a panel of new games.

`sweepd.deploy.games.rules` has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.deploy.games import policy as game_policy
from sweepd.deploy.games.advice import next_steps
from sweepd.deploy.games.baselines import load_baselines
from sweepd.deploy.games.bundle import GameBundle, game_key
from sweepd.deploy.games.candidates import (
    GameCandidate,
    GamePromotion,
    GameResult,
    GameStudy,
    build_bundle,
    read_candidate,
    role_seats,
    same_game,
    trial_bundle,
)
from sweepd.deploy.games.comparison import compare_players
from sweepd.deploy.games.defence import DEALS, defend_champion
from sweepd.deploy.games.duel_panel import DuelGames, DuelPanel, judge_duels, with_champion
from sweepd.deploy.games.panel import Panel, PanelGames, judge_panel, panel_seed
from sweepd.deploy.games.panel import compare as compare_scores
from sweepd.deploy.games.player import read_player
from sweepd.deploy.games.report import game_facts, game_report, game_sections
from sweepd.deploy.games.rules import DEFAULT_RULES, DUEL_RULES, PANEL, SEARCH, GameEvidence
from sweepd.deploy.games.verify import verify_game_bundle
from sweepd.deploy.promotion.comparison import Compared, Comparison
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.gate import Gate, NothingToJudge, TrialPolicy, Verification
from sweepd.deploy.promotion.members import trial_members
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import GateRule, RuleFinding
from sweepd.deploy.promotion.sections import Report, Section
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.games.pairings import Entrant
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import Play

GAMES = 100  # default size of a panel
DUELS = 400  # of one in a game of two players, against each opponent
MOST_PAST, MOST_OTHERS = 20, 50  # past champions and other candidates in a panel, the best ones


class GameGate(Gate[GameStudy, GameCandidate, Panel, GameBundle]):
    """The gate of one promotion on a game; see `Gate`.

    Raises:
        InputError: a baseline player cannot be loaded.
    """

    title = "games"
    study_type, bundle_type = GameStudy, GameBundle
    first_stage, second_stage = SEARCH, PANEL
    without_effect = ("data_dir", "ensemble", "weights", "first_stage", "refit")
    limit_example = "beats-champion=5"

    def __init__(
        self,
        study: GameStudy,
        registry: Registry,
        flags: PromoteFlags = PromoteFlags(),  # noqa: B008 (frozen)
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        super().__init__(study, registry, flags, progress)
        self.baselines = tuple(sorted(own.name for own in load_baselines(flags.baseline or ())))

    @classmethod
    def trial_bundle(cls, study: StudyReader, number: int, *, team: bool = False) -> GameBundle:
        return trial_bundle(GameStudy(study), number, team=team)

    @classmethod
    def compare_players(cls, asked: Comparison) -> Compared:
        return compare_players(asked)

    @property
    def play(self) -> Play:
        """Whether the player takes its most probable actions or draws them."""
        return self.flags.play or self.study.spec.play

    @property
    def games(self) -> int:
        """Number of games in a panel, in a game of two players against each opponent."""
        return self.flags.games or (DUELS if self.study.versus else GAMES)

    @cached_property
    def game(self) -> str:
        """The key of the game."""
        return game_key(self.study.spec.environment, self.study.spec.env)

    @property
    def default_slot(self) -> str:
        """It is named after the game."""
        return slot_name(self.game)

    @property
    def default_rules(self) -> Sequence[GateRule[GameEvidence]]:
        return DUEL_RULES if self.study.versus else DEFAULT_RULES

    @property
    def default_looks(self) -> int:
        """Two where a trial's team and its best member are candidates."""
        return 2 if self.study.teams else 1

    def candidates(self, trial: int | None) -> Sequence[Callable[[], GameCandidate]]:
        trials = self.study.asked(trial)
        if not trials:
            raise NothingToJudge("no candidate", self.study.why_none_complete)
        return [
            partial(read_candidate, one, self.study, self.play, team=team)
            for one in trials
            for team in ((True, False) if self.study.teams else (False,))
        ]

    def steps(self, results: Sequence[GameResult], closest: GameResult) -> Sequence[Step]:  # noqa: ARG002
        return next_steps(self.study, closest, self.registry)

    def closest(self, results: Sequence[GameResult]) -> GameResult:
        """The evaluated result that failed the fewest rules, and of these the best by its panel."""
        scored = [result for result in results if result.look is not None]
        return min(scored, key=_distance) if scored else super().closest(results)

    def judge_for_arena(
        self, candidate: GameCandidate, champion: GameBundle
    ) -> tuple[tuple[RuleFinding, ...], str]:
        findings = self.judge_first_stage(candidate, thorough=True)
        return findings, "" if same_game(
            champion, self.study
        ) else "the champion plays another game"

    def arena_bundle(self, candidate: GameCandidate, findings: Sequence[RuleFinding]) -> GameBundle:
        found = [one.to_dict() for one in findings]
        gate = {"selection": candidate.selection, "slot": self.slot, "findings": found}
        return self.build(candidate, finite(gate))

    @classmethod
    def defend(cls, registry: Registry, slot: str, games: int | None) -> list[str]:
        return defend_champion(registry, slot, games=DEALS if games is None else games)

    def build(self, candidate: GameCandidate, gate: dict[str, Any]) -> GameBundle:
        return build_bundle(candidate, self.study, gate=gate)

    def is_champion(self, draft: GameBundle, champion: str | None) -> bool:
        present = self._load(champion)
        return present is not None and present.identity == draft.identity

    def evaluate(
        self, candidate: GameCandidate, draft: GameBundle
    ) -> tuple[CountedEvaluation, Panel]:
        look = self.registry.evaluations.record_panel(
            self.game,
            self.games,
            members_sha256=draft.identity,
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trial.number,
        )
        each = " against each opponent" if self.study.versus else ""
        self.progress(
            f"{candidate.name}: evaluation {look.number} on the panel, {self.games:,} games{each}"
            + (", sampled play" if candidate.play == "sampled" else "")
        )
        if self.study.versus:
            past, others = self._past_champions(draft), self._other_candidates(candidate)
            duels = self._duel_games(draft, look)
            return look, judge_duels(duels, look.number, draft.player, past, others)
        return look, judge_panel(self._panel_games(draft, look), look.number, draft.player)

    def _past_champions(self, draft: GameBundle) -> list[Entrant]:
        """The slot's newest former champions, without the present one and the candidate."""
        events = self.registry.events(self.slot, kinds=["promoted"])[::-1]
        hashes = dict.fromkeys(event.bundle for event in events if event.bundle)
        found: list[Entrant] = []
        for hash_ in hashes:
            if hash_ == self.registry.slot(self.slot).champion or len(found) == MOST_PAST:
                continue
            try:
                bundle = self.registry.bundle(hash_, GameBundle)
            except InputError:  # its files were removed
                continue
            if same_game(bundle, self.study) and bundle.identity != draft.identity:
                found.append(bundle.player.entrant(self.called(bundle)))
        return found

    def _other_candidates(self, own: GameCandidate) -> list[Entrant]:
        """The players of the study's other trials, best first; they play as the candidate does."""
        found: list[Entrant] = []
        for trial in self.study.complete:
            if trial.number in own.trials or len(found) == MOST_OTHERS:
                continue
            other = read_candidate(trial, self.study, self.play)
            if other.weights is not None:
                found.append(read_player(other.weights, other.play).entrant(other.name))
        return found

    def _duel_games(self, draft: GameBundle, look: CountedEvaluation) -> DuelGames:
        seed = panel_seed(self.study.spec.seed, look.number)
        return DuelGames(self.study.game, draft.params, self.games, seed, self.baselines)

    def _panel_games(self, draft: GameBundle, look: CountedEvaluation) -> PanelGames:
        seed = panel_seed(self.study.spec.seed, look.number)
        return PanelGames(self.study.game, draft.params, self.games, seed, self.baselines)

    def compare(
        self,
        candidate: GameCandidate,
        draft: GameBundle,
        look: CountedEvaluation,
        score: Panel,
        champion: str | None,
    ) -> tuple[GameEvidence, Panel]:
        present, panel = self._load(champion), score
        if present is not None and isinstance(panel, DuelPanel):
            duels = self._duel_games(draft, look)
            panel = with_champion(panel, duels, draft.player, present.player, self.called(present))
        elif present is not None:
            games = self._panel_games(draft, look)
            theirs = games.play_player(present.player)
            opponent = compare_scores(
                self.called(present), panel.episodes, theirs, look.number, games.seed
            )
            panel = dataclasses.replace(panel, champion=opponent)
        return dataclasses.replace(candidate.evidence(), panel=panel), panel

    def record(self, candidate: GameCandidate, score: Panel) -> dict[str, Any]:
        return {"panel": score.to_dict(), "selection": candidate.selection}

    def looks(self) -> int:
        return self.registry.evaluations.count_panel(self.game)

    def report(self, promotion: GamePromotion) -> Report:
        return game_report(self.study, promotion)

    def publish(self, promotion: GamePromotion) -> list[Path]:
        """Publish a game of the player as a GIF."""
        from sweepd.deploy.games.show import publish_replay

        chosen = promotion.chosen
        if chosen is None or chosen.bundle is None:
            return []
        # A champion is called by its slot, another candidate by its trial.
        champion = chosen.bundle.hash == promotion.champion
        name = promotion.slot if champion else chosen.candidate.name
        return [publish_replay(self.study, chosen.bundle, name)]

    def champion_commands(self, slot: str) -> Sequence[tuple[str, str]]:  # noqa: ARG002
        return (
            ("play", "watch the champion"),
            ("registry show", "show its origin and its gate report"),
        )

    def _load(self, hash_: str | None) -> GameBundle | None:
        """Load a champion of the slot.

        Raises:
            InputError: it plays another game, or the same with other parameters.
        """
        if hash_ is None:
            return None
        champion = self.registry.bundle(hash_, GameBundle)
        if not same_game(champion, self.study):
            theirs = game_key(champion.manifest.game.name, champion.manifest.game.params)
            raise InputError(
                f"--slot {self.slot}: its champion {champion.name} plays {theirs}, and study "
                f"{self.study.name!r} is of {self.game}; use the slot {slot_name(self.game)}"
            )
        return champion

    @staticmethod
    def bundle_facts(
        registry: Registry, bundle: GameBundle, places: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        game = bundle.manifest.game
        looks = registry.evaluations.count_panel(game_key(game.name, game.params))
        return game_facts(bundle, places, str(registry.path(bundle.hash)), looks)

    @staticmethod
    def bundle_sections(facts: Mapping[str, Any]) -> list[Section]:
        return game_sections(facts)

    @staticmethod
    def verify(
        registry: Registry,  # noqa: ARG004
        bundle: GameBundle,
        data_dir: Path | None,
    ) -> Verification:
        if data_dir is not None:
            raise InputError(
                f"--data-dir is not for players: {bundle.name} plays {bundle.manifest.game.name}"
            )
        return verify_game_bundle(bundle)

    @staticmethod
    def acting(
        study: GameStudy, trial: FrozenTrial
    ) -> tuple[tuple[FrozenPolicy, ...], FrozenPolicy, tuple[int, ...]]:
        members = tuple(FrozenPolicy([member]) for member in trial_members(study, trial))
        seats: tuple[int, ...] = ()
        if study.roles.names:
            seats = role_seats(trial, study)
            return members, members[seats[0]], seats
        if study.teams:
            team = read_candidate(trial, study, team=True)
            seats = tuple(team.members[own] for own in team.seats)
        return members, members[read_candidate(trial, study).members[0]], seats

    @staticmethod
    def codec(policy: TrialPolicy) -> SpaceCodec:
        return game_policy.codec(policy)

    @staticmethod
    def evaluate_policy(
        policy: TrialPolicy,
        windows: Sequence[tuple[Any, Any]],
        data_dir: str | Path | None,
        games: int,
        seed: int,
    ) -> pd.DataFrame:
        if windows or data_dir is not None:
            raise InputError(
                "windows and data_dir are for markets; a game is evaluated with games=…"
            )
        if games < 2:
            raise InputError(f"games = {games} must be at least 2")
        return game_policy.evaluate(policy, games, seed)


def _distance(result: GameResult) -> tuple[int, float]:
    """How far an evaluated candidate is from passing: failed rules, and minus its worst lead."""
    failed = sum(one.verdict == "fail" for one in result.findings)
    panel = result.score
    assert panel is not None
    return failed, -min(other.difference.low for other in panel.opponents)
