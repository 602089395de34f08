"""Promotion of a game's player: the best member of the best trial plays the panel, and becomes champion if it meets
every rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from deploy.games.bundle import GameBundle, game_key
from deploy.games.gate import DEFAULT_RULES, PANEL, SEARCH, Evidence, shown
from deploy.games.panel import Opponent, Panel, Rules, judge_panel, panel_seed
from deploy.games.panel import compare as compare_players
from deploy.games.study import Candidate, GameStudy, build_bundle, read_candidate, same_game
from deploy.promotion.promotion import (
    CHAMPION_ALREADY,
    NO_LOOK_SPENT,
    AnyPromotion,
    JudgedCandidate,
    Place,
    Settled,
    ask_in_turn,
)
from deploy.promotion.rules import Finding, Rule, judge, not_asked, passed
from deploy.registry.bundle_files import finite
from deploy.registry.registry import Registry
from envs.support.errors import InputError

GAMES = 100  # of a panel


@dataclass(frozen=True, kw_only=True)
class Judged(JudgedCandidate):
    """A candidate and what every rule said about it. look, panel, bundle: None where it did not play the panel.
    solved: the mean return from which on the game counts as solved.
    """

    candidate: Candidate
    panel: Panel | None = None
    bundle: GameBundle | None = None
    solved: float | None = None

    @property
    def shown(self) -> str:
        """What the panel showed, in plain words; empty where it was not played."""
        return "" if self.panel is None else shown(self.panel, self.solved)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        return super().to_dict() | {
            "member": self.candidate.member,
            "score": self.candidate.score,
            "shown": self.shown,
            "panel": None if self.panel is None else described(self.panel),
        }


class Promotion(AnyPromotion[Judged]):
    """The outcome of a promotion. looks: counted at this game's panel."""


def described(panel: Panel) -> dict[str, Any]:
    """A panel for JSON and for the gate's report in a bundle: enough to play it again."""
    return {
        "seed": panel.seed,
        "look": panel.look,
        "games": panel.games,
        "returns": panel.episodes.returns[0].tolist(),
        "lengths": panel.episodes.lengths[0].tolist(),
        "own": dataclasses.asdict(panel.own),
        "baselines": {other.name: _opponent(other) for other in panel.baselines},
        "champion": None
        if panel.champion is None
        else {"name": panel.champion.name} | _opponent(panel.champion),
    }


def _opponent(other: Opponent) -> dict[str, Any]:
    return {
        "own": dataclasses.asdict(other.own),
        "difference": dataclasses.asdict(other.difference),
        "ahead": other.ahead,
        "equal": other.equal,
        "behind": other.behind,
        "share": dataclasses.asdict(other.share),
    }


class GamePromoter:
    """One promotion of one study.

    slot: by default named after the game, see `Registry.default_slot`. dry_run: change no champion and write no bundle;
    a look is counted all the same, since its numbers are seen. looks: how many candidates may play the panel. games: of
    a panel. progress: told, in a few words, what takes long.
    """

    def __init__(
        self,
        study: GameStudy,
        registry: Registry,
        *,
        slot: str | None = None,
        dry_run: bool = False,
        looks: int = 1,
        games: int = GAMES,
        rules: Sequence[Rule[Evidence]] = DEFAULT_RULES,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.study, self.registry = study, registry
        self.game = game_key(study.spec.environment, study.spec.env)
        self.slot = slot or registry.default_slot(self.game)
        self.dry_run, self.looks, self.games = dry_run, looks, games
        self.rules, self.progress = tuple(rules), progress
        self.place = Place(registry, self.slot, study.name, dry_run)
        self.before = self.place.champion

    def run(self, trial: int | None = None) -> Promotion:
        """Judge the candidates in the order of their objective, until one may be promoted or the looks are spent.

        trial: consider only this one. Raises InputError for what is wrong with the study, the slot's champion or the
        registry.
        """
        trials = self.study.asked(trial)
        if not trials:
            return self._outcome(Settled(None, "no candidate", self.study.why_none_complete))
        judged, settled = ask_in_turn(trials, lambda item, _: self._consider(item), self.looks)
        if settled is None:
            chosen = next((one for one in judged if one.panel is not None), judged[0])
            settled = Settled(chosen, "none passes", _why_none(len(judged), chosen))
        promotion = self._outcome(settled, judged)
        self.place.record_refusal(promotion)
        return promotion

    def _consider(self, trial: FrozenTrial) -> Settled[Judged]:
        """What is free to ask, and then the panel."""
        candidate = read_candidate(trial, self.study)
        findings = tuple(
            judge(self.rules, Evidence(candidate.faults, solved=self.study.game.solved), SEARCH)
        )
        if passed(findings):
            return self._challenge(candidate, findings)
        return Settled(
            _judged(candidate, (*findings, *not_asked(self.rules, PANEL, NO_LOOK_SPENT)))
        )

    def _challenge(self, candidate: Candidate, findings: tuple[Finding, ...]) -> Settled[Judged]:
        """The panel, and the promotion if every rule is met."""
        draft = build_bundle(candidate, self.study, gate={})
        known = _judged(candidate, (*findings, *not_asked(self.rules, PANEL, CHAMPION_ALREADY)))
        champion = self._load(self.place.champion)
        if champion is not None and champion.members_sha256 == draft.members_sha256:
            return self.place.champion_already(known)
        look = self.registry.evaluations.record_panel(
            self.game,
            self.games,
            members_sha256=draft.members_sha256,
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trial.number,
        )
        self.progress(f"{candidate.name}: look {look.number} at the panel, {self.games:,} games")
        rules = Rules(
            self.study.game, draft.params, self.games, panel_seed(self.study.spec.seed, look.number)
        )
        panel = judge_panel(rules, look.number, draft.player)

        def compare(hash_: str | None) -> Settled[Judged]:
            champion, played = self._load(hash_), panel
            if champion is not None and champion.members_sha256 == draft.members_sha256:
                return self.place.champion_already(
                    dataclasses.replace(known, look=look, panel=panel)
                )
            if champion is not None:
                theirs = rules.play_player(champion.player)
                duel = compare_players(
                    champion.name, panel.episodes, theirs, look.number, rules.seed
                )
                played = dataclasses.replace(panel, champion=duel)
            evidence = Evidence(candidate.faults, played, self.study.game.solved)
            asked = (*findings, *judge(self.rules, evidence, PANEL))
            gate = {
                "slot": self.slot,
                "look": look.number,
                "panel": described(played),
                "findings": [finding.to_dict() for finding in asked],
            }
            bundle = build_bundle(candidate, self.study, gate=finite(gate))
            judged = dataclasses.replace(
                _judged(candidate, asked),
                look=look,
                panel=played,
                bundle=bundle,
                solved=self.study.game.solved,
            )
            return self.place.settle(judged, hash_)

        return self.place.race(candidate.name, compare)

    def _load(self, hash_: str | None) -> GameBundle | None:
        """A champion of the slot. Raises InputError where it does not play this very game."""
        if hash_ is None:
            return None
        champion = self.registry.bundle(hash_, GameBundle)
        if not same_game(champion, self.study):
            theirs = game_key(champion.manifest.game.name, champion.manifest.game.params)
            raise InputError(
                f"--slot {self.slot}: its champion {champion.name} plays {theirs}, and study {self.study.name!r} is of "
                f"{self.game}; use the slot {self.registry.default_slot(self.game)}"
            )
        return champion

    def _outcome(self, settled: Settled[Judged], judged: Sequence[Judged] = ()) -> Promotion:
        assert settled.outcome is not None
        return Promotion(
            outcome=settled.outcome,
            slot=self.slot,
            study=self.study.name,
            reason=settled.reason,
            candidates=tuple(judged),
            chosen=settled.judged,
            champion_before=self.before,
            champion=self.place.champion,
            version=settled.version,
            dry_run=self.dry_run,
            complete=len(self.study.trials),
            looks=self.registry.evaluations.count_panel(self.game),
        )


def _judged(candidate: Candidate, findings: tuple[Finding, ...]) -> Judged:
    return Judged(
        trial=candidate.trial.number,
        name=candidate.name,
        objective=candidate.value,
        findings=findings,
        candidate=candidate,
    )


ADVICE = {
    "training-faults": "run the study again, or ask with --trial for another one",
    "beats-baselines": "a larger --budget, or more trials",
    "ahead-of-baselines": "a larger --budget or more trials; in a game that few large payoffs decide, a lower --limit",
    "beats-champion": "a larger --budget or more trials; if no player can do better, the champion rightly stays",
    "ahead-of-champion": "a larger --budget, more trials, or more --games where the difference is small",
}


def _why_none(count: int, chosen: Judged) -> str:
    """Which rule stood in the way of the one that came closest, and what helps."""
    failed = [finding for finding in chosen.findings if finding.verdict == "fail"]
    said = "; ".join(f"{finding.name}: {finding.explanation}" for finding in failed)
    advice = next(
        (ADVICE[finding.name] for finding in failed if finding.name in ADVICE), ""
    )  # what is to be met first
    others = "" if count == 1 else f", the closest of {count},"
    helps = f". What helps: {advice}" if advice else ""
    return f"{chosen.name}{others} does not meet {said}{helps}"
