"""What can be done from the dashboard: for each action, the command that does it, and its effects."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.deploy.promotion.sections import short
from sweepd.deploy.registry.flags import (
    DEPLOYMENTS,
    DEPLOYMENTS_VARIABLE,
    REGISTRY_VARIABLE,
    RegistryFlags,
)
from sweepd.envs.external.guard import untagged
from sweepd.envs.support.database_url import STORAGE_VARIABLE, remove_password
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.invocation import program

Values = Mapping[str, str]  # of a form or a query, by name


@dataclass(frozen=True)
class Field:
    """A field of an action's form, which becomes a word of the command.

    Attributes:
        name: of the field.
        label: what is shown.
        word: what stands before the value on the command line; of a check box, all of it.
        kind: "text", "number", "check" or "choice".
        value: at first.
        hint: what is allowed.
        low, high, step: of a number, as HTML has them; "" for no limit.
        choices: of a choice; "" is none of them.
        positional: whether the word is an argument instead of an option.
    """

    name: str
    label: str
    word: str
    kind: str = "text"
    value: str = ""
    hint: str = ""
    low: str = ""
    high: str = ""
    step: str = "any"
    choices: Sequence[str] = ()
    positional: bool = False

    def words(self, form: Values) -> list[str]:
        """Return its word for the values of a form; none if it is left empty."""
        value = form.get(self.name, "").strip()
        if not value:
            return []
        return [self.word if self.kind == "check" else f"{self.word}{value}"]


@dataclass(frozen=True)
class Draft:
    """An action that a user has not confirmed yet.

    Attributes:
        title: what it does to what.
        effects: what will happen, in sentences.
        words: its command and options.
        names: the command's arguments.
        back: link to the page that shows its subject.
        fields: of its form.
        recorded: where the reason is recorded; "" if the action records nothing.
        of_study, of_slot: whether the command reads a study's storage, or the registry.
        danger: whether it stops or replaces something.
    """

    title: str
    effects: Sequence[str]
    words: Sequence[str]
    names: Sequence[str]
    back: str
    fields: Sequence[Field] = ()
    recorded: str = ""
    of_study: bool = False
    of_slot: bool = False
    danger: bool = False

    def command(self, form: Values, options: Sequence[str]) -> list[str]:
        """Return the words of the command.

        Args:
            form: values of the fields.
            options: further options.
        """
        given = [(one.positional, word) for one in self.fields for word in one.words(form)]
        arguments = [*self.names, *(word for positional, word in given if positional)]
        return [
            *self.words,
            *(word for positional, word in given if not positional),
            *options,
            # So that no name is taken for an option.
            *(["--"] if any(one.startswith("-") for one in arguments) else []),
            *arguments,
        ]


@dataclass(frozen=True)
class Places:
    """Where the dashboard reads, as its command was told, so that an action writes there."""

    registry: RegistryFlags
    storage: str | None = None
    runs_dir: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return a command's environment variables. URLs may contain passwords."""
        named = {
            DEPLOYMENTS_VARIABLE: str(self.registry.deployments),
            REGISTRY_VARIABLE: self.registry.registry,
            STORAGE_VARIABLE: self.storage,
            "OMP_NUM_THREADS": "1",
        }
        return {**untagged(), **{name: value for name, value in named.items() if value}}

    def started(self, draft: Draft, form: Values, options: Sequence[str]) -> list[str]:
        """Return the command of the process to be started."""
        folder = [f"--runs-dir={self.runs_dir}"] if draft.of_study and self.runs_dir else []
        return [sys.executable, "-m", "sweepd", *draft.command(form, [*folder, *options])]

    def shown(self, draft: Draft, form: Values) -> str:
        """Return the same command as a user would type it, without passwords."""
        where = []
        if draft.of_study and self.storage:
            url = "://" in self.storage
            where.append(f"--storage={remove_password(self.storage) if url else self.storage}")
        if draft.of_study and self.runs_dir:
            where.append(f"--runs-dir={self.runs_dir}")
        if draft.of_slot and self.registry.deployments != DEPLOYMENTS:
            where.append(f"--deployments={self.registry.deployments}")
        if draft.of_slot and self.registry.registry:
            where.append(f"--registry={remove_password(self.registry.registry)}")
        return f"{program()} {shlex.join(draft.command(form, where))}"


SLOT_RECORD = "the slot's history"
STUDY_RECORD = "the study's log"
COUNTED = (
    "An evaluation on unseen data is counted, and makes the rules stricter for later ones: this "
    "cannot be undone."
)
LONG = "It may take minutes, and continues if you leave the page."


class SlotActions:
    """The actions on a slot. Each method takes the query, and returns a draft.

    All raise InputError if the action makes no sense at present.
    """

    def __init__(self, paper: PaperSource, search: StudySource) -> None:
        self._paper, self._search = paper, search

    def table(self) -> Mapping[str, Callable[[Values], Draft]]:
        """Return the actions by name."""
        return {
            "slot/halt": self.halt,
            "slot/resume": self.resume,
            "slot/rollback": self.rollback,
            "slot/promote": self.promote,
            "slot/withdraw": self.withdraw,
        }

    def halt(self, query: Values) -> Draft:
        """Stop trading."""
        slot = _named(query, "slot")
        view = self._paper.view(slot)
        if view.trader is None:
            raise InputError(f"slot {slot!r} was never traded, so there is nothing to halt")
        held = [
            f"{one.ticker} ({one.cells[0]} units)"
            for one in (view.holdings.positions if view.holdings else [])
            if one.units
        ]
        return _of_slot(
            f"Halt {slot}",
            slot,
            [
                f"The trader sells all its positions: {', '.join(held)}."
                if held
                else "The trader holds no position.",
                "Then it sends no order until it is resumed. A new start does not end the halt.",
                f"The trader is {view.health.state}. A running one obeys within seconds; one that "
                "does not run obeys when it starts.",
            ],
            ("trader", "halt"),
            fields=[Field("keep", "Keep the positions", "--keep", "check")] if held else [],
            danger=True,
        )

    def resume(self, query: Values) -> Draft:
        """Let a halted trader trade again."""
        slot = _named(query, "slot")
        trader = self._paper.open().store.trader(slot)
        if trader is None or trader.halt is None:
            raise InputError(f"slot {slot!r} is not halted")
        effects = [
            f"It was halted: {trader.halt}.",
            "The trader trades again from its next bar, towards the policy's positions.",
        ]
        return _of_slot(f"Resume {slot}", slot, effects, ("trader", "resume"))

    def rollback(self, query: Values) -> Draft:
        """Bring the previous champion back."""
        slot = _named(query, "slot")
        place = self._paper.open().registry.require(slot)
        if place.previous is None:
            raise InputError(f"slot {slot!r} has no previous champion to go back to")
        effects = [
            f"{short(place.previous)} becomes champion again, and {short(place.champion)} the "
            "previous one. A second rollback undoes this.",
            "A running trader changes to it at the end of a bar, with its present positions.",
        ]
        return _of_slot(f"Roll back {slot}", slot, effects, ("rollback",), danger=True)

    def promote(self, query: Values) -> Draft:
        """Judge a challenger again, and make it champion if it passes."""
        slot, bundle = self._challenger(query)
        events = self._paper.open().registry.events(slot, bundle=bundle, kinds=["challenger"])
        report = (events[-1].report or {}) if events else {}
        study, trials = report.get("study"), report.get("trials") or [report.get("trial")]
        if study is None or trials[0] is None:
            raise InputError(f"the registry does not say which trial challenger {short(bundle)} is")
        if len(trials) > 1:
            raise InputError(
                f"challenger {short(bundle)} is an ensemble, which sweepd promote --study-name "
                f"{shlex.quote(study)} --slot {shlex.quote(slot)} --ensemble {len(trials)} judges again"
            )
        _check_study(self._search, study)
        effects = [
            f"Trial {trials[0]} of study {study} is judged by every rule again, and compared with "
            "the present champion. It becomes champion if it meets all of them.",
            "The evaluation of the same weights is not counted a second time.",
            LONG,
        ]
        words = ("promote", f"--study-name={study}", f"--slot={slot}", f"--trial={trials[0]}")
        return Draft(
            f"Promote challenger {short(bundle)} of {slot}",
            effects,
            words,
            (),
            _link("/", slot=slot),
            recorded=SLOT_RECORD,
            of_study=True,
            of_slot=True,
        )

    def withdraw(self, query: Values) -> Draft:
        """Remove a challenger."""
        slot, bundle = self._challenger(query)
        effects = [
            f"{short(bundle)} is no longer a challenger of {slot}, and leaves the arena.",
            "Its history stays, and promoting its trial can bring it back.",
        ]
        title = f"Withdraw challenger {short(bundle)} of {slot}"
        words = ("registry", "withdraw")
        return _of_slot(title, slot, effects, words, names=(slot, bundle), danger=True)

    def _challenger(self, query: Values) -> tuple[str, str]:
        slot, bundle = _named(query, "slot"), _named(query, "bundle")
        if bundle not in self._paper.open().registry.slot(slot).challengers:
            raise InputError(f"{short(bundle)} is not a challenger of slot {slot!r}")
        return slot, bundle


class StudyActions:
    """The actions on a study; see `SlotActions`."""

    def __init__(self, search: StudySource) -> None:
        self._search = search

    def table(self) -> Mapping[str, Callable[[Values], Draft]]:
        """Return the actions by name."""
        return {
            "study/pause": self.pause,
            "study/resume": self.resume,
            "study/enqueue": self.enqueue,
            "study/promote": self.promote,
            "study/dry-run": self.dry_run,
        }

    def pause(self, query: Values) -> Draft:
        """Pause a study."""
        name, found = self._progress(query)
        if found["paused"]:
            raise InputError(f"study {name!r} is paused already, by {found['paused']['by']}")
        alive = [one for one in found["workers"] if one["status"] == "alive"]
        effects = [
            f"{counted(len(alive), 'worker')} of the study: each writes a checkpoint at the end of "
            "the rollout, requeues its trials, frees GPU memory, and waits.",
            "No result is lost: the trials continue exactly from their checkpoints.",
        ]
        return _of_study(f"Pause {name}", name, effects, ("pause",), danger=True)

    def resume(self, query: Values) -> Draft:
        """Resume a paused study."""
        name, found = self._progress(query)
        if not found["paused"]:
            raise InputError(f"study {name!r} is not paused")
        effects = [
            f"It was paused by {found['paused']['by']}.",
            "Its workers continue exactly from the checkpoints.",
        ]
        return _of_study(f"Resume {name}", name, effects, ("resume",))

    def enqueue(self, query: Values) -> Draft:
        """Add a trial whose parameters are those of the best one, unless they are edited."""
        name = _named(query, "study")
        _check_study(self._search, name)
        found = self._search.parameters(name)
        best = found["best"]
        params = {} if best is None else best["params"]
        effects = [
            "A trial waits until a worker takes it, before new ones. It counts towards the number "
            "of trials.",
            "The sampler draws the parameters that are left empty."
            + (
                ""
                if best is None
                else f" The fields hold those of trial {best['trial']}, the best."
            ),
        ]
        fields = [_parameter(axis, params) for axis in found["parallel"]["axes"]]
        return _of_study(f"Enqueue a trial of {name}", name, effects, ("enqueue",), fields=fields)

    def promote(self, query: Values) -> Draft:
        """Judge a study's candidates, and promote the first that passes."""
        effects = [
            "The candidates are judged by every rule of the gate, the best first. The first one "
            "that meets all of them becomes champion of the slot.",
            COUNTED,
            LONG,
        ]
        return self._promotion(query, "Promote the best trial of", effects, (), SLOT_RECORD)

    def dry_run(self, query: Values) -> Draft:
        """The same without a change of the registry."""
        effects = [
            "The candidates are judged as by a promotion, and the report is shown. No champion "
            "changes.",
            COUNTED,
            LONG,
        ]
        return self._promotion(query, "Dry-run a promotion of", effects, ("--dry-run",), "")

    def _promotion(
        self,
        query: Values,
        title: str,
        effects: Sequence[str],
        options: Sequence[str],
        recorded: str,
    ) -> Draft:
        name = _named(query, "study")
        _check_study(self._search, name)
        return Draft(
            f"{title} {name}",
            effects,
            ("promote", *options, f"--study-name={name}"),
            (),
            _link("/training", study=name),
            fields=[
                Field(
                    "trial",
                    "Trial",
                    "--trial=",
                    "number",
                    hint="empty: all, the best first",
                    low="0",
                    step="1",
                ),
                Field("slot", "Slot", "--slot=", hint="empty: that of the study's environment"),
            ],
            recorded=recorded,
            of_study=True,
            of_slot=True,
        )

    def _progress(self, query: Values) -> tuple[str, dict[str, Any]]:
        name = _named(query, "study")
        _check_study(self._search, name)
        return name, self._search.progress(name)


def _named(query: Values, name: str) -> str:
    if not query.get(name):
        raise InputError(f"the address must name a {name}: ?{name}=…")
    return query[name]


def _check_study(search: StudySource, name: str) -> None:
    known = search.studies()
    if name not in known:
        raise InputError(
            f"the dashboard's storage has no study {name!r}; it has {', '.join(known) or 'none'}"
        )


def _of_slot(
    title: str,
    slot: str,
    effects: Sequence[str],
    words: Sequence[str],
    *,
    names: Sequence[str] = (),
    fields: Sequence[Field] = (),
    danger: bool = False,
) -> Draft:
    return Draft(
        title,
        effects,
        words,
        names or (slot,),
        _link("/", slot=slot),
        fields=fields,
        recorded=SLOT_RECORD,
        of_slot=True,
        danger=danger,
    )


def _of_study(
    title: str,
    name: str,
    effects: Sequence[str],
    words: Sequence[str],
    *,
    fields: Sequence[Field] = (),
    danger: bool = False,
) -> Draft:
    return Draft(
        title,
        effects,
        words,
        (name,),
        _link("/training", study=name),
        fields=fields,
        recorded=STUDY_RECORD,
        of_study=True,
        danger=danger,
    )


def _parameter(axis: Mapping[str, Any], params: Mapping[str, Any]) -> Field:
    """Return the field of a sampled parameter with the value of a trial."""
    name, off = axis["name"], axis["off"]
    value = off if params.get(f"{name}_on") is False else params.get(name)
    text = "" if value is None else str(value)
    if axis["choices"]:
        choices = tuple(str(one) for one in axis["choices"])
        return Field(
            name, name, f"{name}=", "choice", text, choices=("", *choices), positional=True
        )
    hint = f"{axis['low']:g} … {axis['high']:g}"
    if off is not None:
        hint += f", or {off} (off)"
        return Field(name, name, f"{name}=", value=text, hint=hint, positional=True)
    low, high = str(axis["low"]), str(axis["high"])
    return Field(name, name, f"{name}=", "number", text, hint, low=low, high=high, positional=True)


def _link(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"
