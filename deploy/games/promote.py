"""Promotion of a game's player: the best trial's team or best member is evaluated on a panel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from sweepd.deploy.games.advice import why_none
from sweepd.deploy.games.baselines import load_baselines
from sweepd.deploy.games.bundle import GameBundle, game_key
from sweepd.deploy.games.candidates import (
    GameCandidate,
    GameStudy,
    build_bundle,
    read_candidate,
    same_game,
)
from sweepd.deploy.games.duel_panel import DuelGames, DuelPanel, judge_duels, with_champion
from sweepd.deploy.games.gate import DEFAULT_RULES, DUEL_RULES, PANEL, SEARCH, GameEvidence
from sweepd.deploy.games.panel import Panel, PanelGames, judge_panel, panel_seed
from sweepd.deploy.games.panel import compare as compare_players
from sweepd.deploy.games.player import read_player
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.promotion import CandidateOutcome, GateResult, Promotion
from sweepd.deploy.promotion.rules import GateRule
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.envs.games.pairings import Entrant
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.stored import Play

GAMES = 100  # default size of a panel
DUELS = 400  # of one in a game of two players, against each opponent
MOST_PAST, MOST_OTHERS = 20, 50  # past champions and other candidates in a panel, the best ones


def default_rules(study: GameStudy) -> tuple[GateRule[GameEvidence], ...]:
    """The gate's rules for the study's game."""
    return DUEL_RULES if study.versus else DEFAULT_RULES


GameResult: TypeAlias = GateResult[GameCandidate, Panel, GameBundle]
GamePromotion: TypeAlias = Promotion[GameResult]


class GamePromoter(Promoter[GameCandidate, Panel, GameBundle, GamePromotion]):
    """One promotion of one study on a game. See `Promoter` for the other arguments.

    Args:
        slot: the deployment slot, by default named after the game (`slot_name`).
        looks: the most candidates that are evaluated on a panel; None: 1, or 2 where a trial's team
            and its best member are candidates.
        games: number of games in a panel, in a game of two players against each opponent; None: the
            default of the game.
        rules: the gate's rules; None: the game's default ones.
        play: whether the player takes its most probable actions or draws them; None: as the
            study's evaluations judged it.
        baselines: a user's baseline players, `MODULE:NAME`; see `sweepd.deploy.games.baselines`.

    Raises:
        InputError: a baseline player cannot be loaded.
    """

    first_stage, second_stage = SEARCH, PANEL

    def __init__(
        self,
        study: GameStudy,
        registry: Registry,
        *,
        slot: str | None = None,
        dry_run: bool = False,
        looks: int | None = None,
        games: int | None = None,
        rules: Sequence[GateRule[GameEvidence]] | None = None,
        progress: Callable[[str], None] = lambda _text: None,
        play: Play | None = None,
        baselines: Sequence[str] = (),
    ) -> None:
        self.study, self.play = study, play or study.spec.play
        self.baselines = tuple(sorted(own.name for own in load_baselines(baselines)))
        self.games = games or (DUELS if study.versus else GAMES)
        self.game = game_key(study.spec.environment, study.spec.env)
        super().__init__(
            study,
            registry,
            slot=slot or slot_name(self.game),
            dry_run=dry_run,
            looks=looks or (2 if study.teams else 1),
            rules=default_rules(study) if rules is None else rules,
            progress=progress,
        )

    def run(self, trial: int | None = None) -> GamePromotion:
        """Judge the candidates until one is promoted or the evaluations are spent.

        Args:
            trial: consider this trial only.

        Raises:
            InputError: the study, the slot's champion or the registry cannot be used.
        """
        trials = self.study.asked(trial)
        if not trials:
            reason = self.study.why_none_complete
            return self._promotion(CandidateOutcome(None, "no candidate", reason))
        kinds = (True, False) if self.study.teams else (False,)
        return self._promote_first(
            [
                partial(read_candidate, one, self.study, self.play, team=team)
                for one in trials
                for team in kinds
            ]
        )

    def _why_none(self, results: Sequence[GameResult], closest: GameResult) -> str:
        return why_none(results, closest)

    def _closest(self, results: Sequence[GameResult]) -> GameResult:
        """The evaluated result that failed the fewest rules, and of these the best by its panel."""
        scored = [result for result in results if result.look is not None]
        return min(scored, key=_distance) if scored else super()._closest(results)

    def _build(self, candidate: GameCandidate, gate: dict[str, Any]) -> GameBundle:
        return build_bundle(candidate, self.study, gate=gate)

    def _is_champion(self, draft: GameBundle, champion: str | None) -> bool:
        present = self._load(champion)
        return present is not None and present.identity == draft.identity

    def _evaluate(
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
            if hash_ == self._champion or len(found) == MOST_PAST:
                continue
            try:
                bundle = self.registry.bundle(hash_, GameBundle)
            except InputError:  # its files were removed
                continue
            if same_game(bundle, self.study) and bundle.identity != draft.identity:
                found.append(bundle.player.entrant(self._called(bundle)))
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

    def _compare(
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
            panel = with_champion(panel, duels, draft.player, present.player, self._called(present))
        elif present is not None:
            games = self._panel_games(draft, look)
            theirs = games.play_player(present.player)
            opponent = compare_players(
                self._called(present), panel.episodes, theirs, look.number, games.seed
            )
            panel = dataclasses.replace(panel, champion=opponent)
        return dataclasses.replace(candidate.evidence(), panel=panel), panel

    def _report(self, candidate: GameCandidate, score: Panel) -> dict[str, Any]:
        return {"panel": score.to_dict(), "selection": candidate.selection}

    def _promotion(
        self, outcome: CandidateOutcome[GameResult], results: Sequence[GameResult] = ()
    ) -> GamePromotion:
        return Promotion(
            **self._fields(outcome, results), looks=self.registry.evaluations.count_panel(self.game)
        )

    def _called(self, bundle: GameBundle) -> str:
        """What a present or past champion is called: `SLOT@3`, by its version in the slot."""
        versions = self.registry.versions(self.slot)
        number = next((one.number for one in versions if one.bundle == bundle.hash), None)
        return bundle.name if number is None else f"{self.slot}@{number}"

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


def _distance(result: GameResult) -> tuple[int, float]:
    """How far an evaluated candidate is from passing: failed rules, and minus its worst lead."""
    failed = sum(one.verdict == "fail" for one in result.findings)
    panel = result.score
    assert panel is not None
    return failed, -min(other.difference.low for other in panel.opponents)
