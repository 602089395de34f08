"""Promotion of a game's player: the best member of the best trial plays the panel, and becomes champion if it meets
every rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deploy.bundle_files import finite
from deploy.bundles import player
from deploy.games.bundle import GameBundle, default_slot
from deploy.games.gate import DEFAULT_RULES, PANEL, SEARCH, Evidence
from deploy.games.panel import Opponent, Panel, Rules, compare, judge_panel, panel_seed
from deploy.games.study import Candidate, GameStudy, build_bundle, read_candidate, same_game, weights_sha256
from deploy.registry import ChampionMoved, Look, Registry
from deploy.rules import Finding, Rule, judge, not_asked, passed
from envs.errors import InputError, RunError

Outcome = Literal["promoted", "would promote", "champion already", "none passes", "no candidate"]
GAMES = 100  # of a panel
MAX_RACES = 5
KEPT_CANDIDATES = 20  # in the JSON of a promotion


@dataclass(frozen=True)
class Judged:
    """A candidate and what every rule said about it. look, panel, bundle: None where it did not play the panel."""

    candidate: Candidate
    findings: tuple[Finding, ...]
    look: Look | None = None
    panel: Panel | None = None
    bundle: GameBundle | None = None

    @property
    def passes(self) -> bool:
        """Whether every rule is met."""
        return passed(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        return {
            "trial": self.candidate.trial.number,
            "member": self.candidate.member,
            "objective": self.candidate.value,
            "score": self.candidate.score,
            "passes": self.passes,
            "look": None if self.look is None else dataclasses.asdict(self.look),
            "panel": None if self.panel is None else described(self.panel),
            "bundle": None if self.bundle is None else self.bundle.hash,
            "findings": [finding.to_dict() for finding in self.findings],
        }


@dataclass(frozen=True)
class Promotion:
    """What came of it.

    candidates: those that were judged, best objective first; chosen: the one the outcome is about, or the one that came
    closest. champion: the slot's afterwards (with dry_run: still the old one). version: the champion's number in the
    slot, where it moved. complete: trials that could have asked. looks: taken so far at this game's panel.
    """

    outcome: Outcome
    slot: str
    study: str
    reason: str
    candidates: tuple[Judged, ...] = ()
    chosen: Judged | None = None
    champion_before: str | None = None
    champion: str | None = None
    version: int | None = None
    dry_run: bool = False
    complete: int = 0
    looks: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        names = ("outcome", "slot", "study", "reason", "champion_before", "champion", "version", "dry_run")
        content: dict[str, Any] = finite(
            {name: getattr(self, name) for name in (*names, "complete", "looks")}
            | {
                "trial": self.chosen.candidate.trial.number if self.chosen else None,
                "candidates": [judged.to_dict() for judged in self.candidates[:KEPT_CANDIDATES]],
            }
        )
        return content


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
        "champion": None if panel.champion is None else {"name": panel.champion.name} | _opponent(panel.champion),
    }


def _opponent(other: Opponent) -> dict[str, Any]:
    return {
        "own": dataclasses.asdict(other.own),
        "difference": dataclasses.asdict(other.difference),
        "wins": other.wins,
    }


class GamePromoter:
    """One promotion of one study.

    slot: see `deploy.games.bundle.default_slot`. dry_run: change no champion and write no bundle; a look is counted all
    the same, since its numbers are seen. looks: how many candidates may play the panel. games: of a panel.
    progress: told, in a few words, what takes long.
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
        self.game = default_slot(study.spec.environment, study.spec.env)  # the game with its parameters, in a word
        self.slot = slot or self.game
        self.dry_run, self.looks, self.games = dry_run, looks, games
        self.rules, self.progress = tuple(rules), progress
        self.before = registry.slot(self.slot).champion

    def run(self, trial: int | None = None) -> Promotion:
        """Judge the candidates in the order of their objective, until one may be promoted or the looks are spent.

        trial: consider only this one. Raises InputError for what is wrong with the study, the slot's champion or the
        registry.
        """
        trials = [item for item in self.study.trials if trial is None or item.number == trial]
        if trial is not None and not trials:
            raise InputError(f"--trial {trial} is not a COMPLETE trial of study {self.study.name!r}")
        if not trials:
            reason = f"none of the study's {self.study.finished} finished trials is COMPLETE: all were pruned or failed"
            return self._outcome("no candidate", reason)
        judged: list[Judged] = []
        spent = 0
        for item in trials:
            if spent == self.looks:
                break
            candidate = read_candidate(item, self.study)
            evidence = Evidence(candidate.faults, solved=self.study.game.solved)
            findings = judge(self.rules, evidence, SEARCH)
            if not passed(findings):
                why = not_asked(self.rules, PANEL, "it failed a rule that is free to ask: no look was spent")
                judged.append(Judged(candidate, (*findings, *why)))
                continue
            spent += 1
            result, settled = self._challenge(candidate, findings)
            judged.append(result)
            if settled is not None:
                outcome, reason, version = settled
                return self._outcome(outcome, reason, judged, result, version)
        chosen = next((one for one in judged if one.panel is not None), judged[0])
        refusal = self._outcome("none passes", _why_none(len(judged), chosen), judged, chosen)
        if not self.dry_run:
            self.registry.refuse(self.slot, refusal.reason, refusal.to_dict())
        return refusal

    def _challenge(
        self, candidate: Candidate, findings: Sequence[Finding]
    ) -> tuple[Judged, tuple[Outcome, str, int | None] | None]:
        """The panel, and the promotion if every rule is met; None where the next candidate may try."""
        champion = self._champion()
        draft = build_bundle(candidate, self.study, gate={})
        if champion is not None and champion.members_sha256 == draft.members_sha256:
            why = not_asked(self.rules, PANEL, "it is the champion already")
            said = f"{candidate.name} is the champion of {self.slot} already"
            return Judged(candidate, (*findings, *why)), ("champion already", said, None)
        look = self.registry.take_panel_look(
            self.game,
            self.games,
            members_sha256=weights_sha256(candidate),
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trial.number,
        )
        self.progress(f"{candidate.name}: look {look.number} at the panel, {self.games:,} games")
        rules = Rules(self.study.game, draft.params, self.games, panel_seed(self.study.spec.seed, look.number))
        panel = judge_panel(rules, look.number, draft.player)
        for _ in range(MAX_RACES):
            if champion is not None:
                played = rules.play_player(champion.player)
                duel = compare(champion.name, panel.episodes, played, look.number, rules.seed)
                panel = dataclasses.replace(panel, champion=duel)
            evidence = Evidence(candidate.faults, panel, self.study.game.solved)
            asked = (*findings, *judge(self.rules, evidence, PANEL))
            gate = {
                "slot": self.slot,
                "look": look.number,
                "panel": described(panel),
                "findings": [finding.to_dict() for finding in asked],
            }
            bundle = build_bundle(candidate, self.study, gate=finite(gate))
            judged = Judged(candidate, asked, look, panel, bundle)
            if not judged.passes:
                return judged, None
            reason = f"{candidate.name} of {self.study.name} met every rule"
            if self.dry_run:
                return judged, ("would promote", reason + " (--dry-run: nothing was changed)", None)
            try:
                version = self.registry.promote(
                    self.slot,
                    bundle,
                    expected=champion.hash if champion else None,
                    reason=reason,
                    report=finite(judged.to_dict() | {"study": self.study.name}),
                )
            except ChampionMoved:
                champion = self._champion()
                if champion is not None and champion.members_sha256 == bundle.members_sha256:
                    return judged, ("champion already", f"{candidate.name} is the champion of {self.slot} by now", None)
                continue
            return judged, ("promoted", reason, version)
        raise RunError(
            f"the champion of {self.slot} changed {MAX_RACES} times while {candidate.name} was compared with it; "
            "try again"
        )

    def _champion(self) -> GameBundle | None:
        """The slot's champion. Raises InputError where it does not play this very game."""
        hash_ = self.registry.slot(self.slot).champion
        if hash_ is None:
            return None
        champion = player(self.registry.any_bundle(hash_))
        if not same_game(champion, self.study):
            theirs = default_slot(champion.manifest.game.name, champion.manifest.game.params)
            raise InputError(
                f"--slot {self.slot}: its champion {champion.name} plays {theirs}, and study {self.study.name!r} is of "
                f"{self.game}; use the slot {self.game}"
            )
        return champion

    def _outcome(
        self,
        outcome: Outcome,
        reason: str,
        judged: Sequence[Judged] = (),
        chosen: Judged | None = None,
        version: int | None = None,
    ) -> Promotion:
        return Promotion(
            outcome=outcome,
            slot=self.slot,
            study=self.study.name,
            reason=reason,
            candidates=tuple(judged),
            chosen=chosen,
            champion_before=self.before,
            champion=self.registry.slot(self.slot).champion,
            version=version,
            dry_run=self.dry_run,
            complete=len(self.study.trials),
            looks=self.registry.panel_looks(self.game),
        )


ADVICE = {
    "training-faults": "run the study again, or ask with --trial for another one",
    "beats-baselines": "a larger --budget, or more trials",
    "beats-champion": "a larger --budget or more trials; where nobody can do better, the champion rightly stays",
}


def _why_none(count: int, chosen: Judged) -> str:
    """Which rule stood in the way of the one that came closest, and what helps."""
    failed = [finding for finding in chosen.findings if finding.verdict == "fail"]
    said = "; ".join(f"{finding.name}: {finding.explanation}" for finding in failed)
    advice = dict.fromkeys(ADVICE[finding.name] for finding in failed if finding.name in ADVICE)
    others = "" if count == 1 else f", the closest of {count},"
    helps = f". What helps: {'; '.join(advice)}" if advice else ""
    return f"{chosen.candidate.name}{others} does not meet {said}{helps}"
