"""The rules of Bucket Brigade in C++ for CPUs, called through ctypes: to the bit those of torch."""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.games.batched_rules import State
from sweepd.envs.games.bucket_brigade import events
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.rules import NightEvents, Rules, chances_of_success
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.games.drawn_ahead import Numbers
from sweepd.envs.native import threads
from sweepd.envs.native.structs import c_struct
from sweepd.envs.native.use import NativeLibrary, scattered

SOURCE = Path(__file__).with_name("src") / "brigade.cpp"
# After an intended change of the rules: python -m sweepd.envs.games.bucket_brigade.native
DIGEST = "1862ca902619435e"
_Brigade, _Phases, _State = (c_struct(SOURCE, name) for name in ("Brigade", "Phases", "State"))
_NightEvents, _Chances = (c_struct(SOURCE, name) for name in ("NightEvents", "Chances"))


class Library:
    """The functions of the compiled library."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        brigade, state, at, number = POINTER(_Brigade), POINTER(_State), c_void_p, c_int64
        phases, events = POINTER(_Phases), POINTER(_NightEvents)
        self.seat, self.play = lib.sweepd_brigade_seat, lib.sweepd_brigade_play
        self.evaluate = lib.sweepd_brigade_evaluate
        self.evaluate.argtypes = [POINTER(_Chances), at, at, at, number, number]
        self.restart, self.show = lib.sweepd_brigade_restart, lib.sweepd_brigade_show
        self.seat.argtypes = [brigade, at, at, at, number]
        self.play.argtypes = [brigade, phases, state, state, events, at, at, at, number]
        self.restart.argtypes = [brigade, state, state, at, at, number]
        self.show.argtypes = [brigade, state, at, at, number, number]
        for function in (self.evaluate, self.play, self.restart, self.show):
            function.restype = None
        self.seat.restype = c_int64


class NativeBrigade:
    """The rules of one environment's games: `Rules` (`sweepd.envs.games.batched_rules`)."""

    @classmethod
    def of(cls, library: Library, game: Any) -> NativeBrigade:
        """Return the rules of a `BucketBrigade`."""
        return cls(library, game.rules, game.encoder, game.scale, game.age, game.final)

    def __init__(
        self,
        library: Library,
        rules: Rules,
        encoder: ObservationEncoder,
        scale: Tensor,
        age: Tensor,
        final: State,
    ) -> None:
        """Take the parameters, whose tensors are read in every step.

        Args:
            library: The compiled functions.
            rules: The rules of all games.
            encoder: What encodes their observations.
            scale: (E,) float64, by which rewards are divided.
            age: (E,) int64, the nights played before the present one.
            final: The last states of the latest games, written by `restart`.
        """
        self._library, self._rules, self._encoder, self._age = library, rules, encoder, age
        self._games, self._final = len(scale), _state(final)
        self._brigade = _Brigade(
            games=len(scale),
            houses=rules.num_houses,
            agents=rules.num_agents,
            scale=scale,
            scaled=encoder.scaled,
            size=encoder.size,
            shared=encoder.shared,
            seen=encoder.seen,
            table=encoder.table,
            **{name: own for name, own in rules.tensors().items() if name in _Brigade.kinds},
        )

    def seat(self, action: Tensor, row_of: Tensor | None) -> tuple[Tensor, bool]:
        """Return the rows' actions, (rows, 3), as `Rules.play` takes them, and if all are legal.

        Illegal ones become the last legal ones. row_of: (seats,) int64, the row of every seat;
        None: rows are seats.
        """
        acts = torch.empty(self._rules.num_agents, 3, self._games, dtype=torch.uint8)
        action = action.to(torch.int64).contiguous()
        legal = self._library.seat(
            self._brigade, action.data_ptr(), _address(row_of), acts.data_ptr(), threads.count()
        )
        return acts, bool(legal)

    def evaluate(self, params: BucketParams, uniform: Tensor) -> Numbers:
        """See `events.evaluate`. In continuous mode, torch does it."""
        if params.continuous:
            return events.evaluate(params, uniform)
        chance, failed = params.prob_house_catches_fire, chances_of_success(params)
        by_ignition, by_rest = events.inverse_shares(chance)
        chances = _Chances(
            agents=len(failed),
            ignition=chance,
            by_ignition=by_ignition,
            by_rest=by_rest,
            most=events.MOST,
            failed=tuple(failed),
        )
        found = {
            "needed": torch.empty(uniform.shape, dtype=torch.uint8),
            "ignites": torch.empty(uniform.shape, dtype=torch.bool),
        }
        addresses = (own.data_ptr() for own in (uniform.contiguous(), *found.values()))
        self._library.evaluate(chances, *addresses, uniform.numel(), threads.count())
        return found

    def move(
        self, state: State, action: Tensor, uniforms: NightEvents
    ) -> tuple[State, Tensor, Tensor]:
        """See `BucketBrigade.move`; `action` is changed where agents are held back."""
        rules, games = self._rules, self._games
        after = {
            "houses": torch.empty(rules.num_houses, games, dtype=torch.uint8),
            "acts": action,
            "progress": rules.no_progress,
        }
        if rules.continuous:
            after["progress"] = torch.empty(rules.num_houses, games)
        rewards = torch.empty(games, rules.num_agents)
        terminated = torch.empty(games, dtype=torch.bool)
        happens = {
            name: own.contiguous() for name, own in uniforms._asdict().items() if own is not None
        }
        self._library.play(
            self._brigade,
            _Phases(continuous=rules.continuous, positional=rules.positional, shaped=rules.shaped),
            _state(state),
            _state(after),
            _NightEvents(**happens),
            self._age.data_ptr(),
            rewards.data_ptr(),
            terminated.data_ptr(),
            threads.count(),
        )
        return after, rewards, terminated

    def restart(self, state: State, ended: Tensor, uniforms: Tensor) -> State:
        """See `BatchedRules.restart`. In place: nobody needs the state that `move` made any more."""
        own = {name: part for name, part in state.items() if part is not self._rules.no_progress}
        self._library.restart(
            self._brigade,
            _State(**own),
            self._final,
            ended.data_ptr(),
            uniforms.contiguous().data_ptr(),
            threads.count(),
        )
        return state

    def in_range(self, action: Tensor) -> bool:  # noqa: ARG002
        """See `BatchedRules.in_range`; its actions are discrete."""
        return False

    def show(self, state: State, row_of: Tensor | None, out: Tensor) -> None:
        """Write the observations of rows, (rows, size) float32; `row_of` as in `seat`."""
        fits = out.dtype == torch.float32 and out.stride(1) == 1
        obs = out if fits else torch.empty(out.shape)
        self._library.show(
            self._brigade,
            _state(state),
            _address(row_of),
            obs.data_ptr(),
            obs.stride(0),
            threads.count(),
        )
        if obs is not out:
            out.copy_(obs)

    def see(self, state: State) -> Tensor:
        """See `BatchedRules.see`."""
        obs = torch.empty(self._games * self._rules.num_agents, self._encoder.size)
        self.show(state, None, obs)
        return obs.view(self._games, self._rules.num_agents, -1)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _state(state: State) -> ctypes.Structure:
    """Return the addresses of a state, or of contiguous copies."""
    return _State(**{name: tensor.contiguous() for name, tensor in state.items()})


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the rules compute, for their self-test."""
    hashed = hashlib.sha256()
    costly = scenario(
        "default_continuous",
        action_shaping_alpha=0.3,
        action_shaping_beta=0.7,
        progress_shaping_coef=1.1,
        team_welfare_kind="team_welfare_closed_form",
        team_welfare_lambda=0.9,
        distance_cost_alpha=0.1,
        num_houses=7,
    )
    near = scenario("hard", min_nights=2, num_houses=7, action_validity_mode="adjacent_only")
    for params in ([scenario("default")], [costly, near]):
        for scaled in (True, False):
            for tensor in _results(found, params, scaled):
                hashed.update(tensor.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


def _results(found: Library, params: list[BucketParams], scaled: bool) -> list[Tensor]:
    """Return all that some nights lead to."""
    each, (houses, agents) = 67, (params[0].num_houses, params[0].num_agents)
    games, cpu = each * len(params), torch.device("cpu")
    rules = Rules(houses, agents, games, cpu)
    encoder = ObservationEncoder(houses, agents, games, scaled=scaled, device=cpu)
    for member, own in enumerate(params):
        rules.configure(slice(member * each, (member + 1) * each), own, member)
        encoder.configure(slice(member * each, (member + 1) * each), own)
    age = torch.zeros(games, dtype=torch.int64)
    final = {"houses": torch.zeros(houses, games, dtype=torch.uint8), "acts": rules.no_acts.clone()}
    native = NativeBrigade(
        found, rules, encoder, 1.0 + torch.arange(games).double() % 3, age, final
    )

    used = 0

    def drawn(*size: int, most: int) -> Tensor:
        nonlocal used
        numbers = scattered(*size, below=1000003, first=used)
        used += numbers.numel()
        return (numbers % most).long()

    state = {
        "houses": drawn(houses, games, most=2).to(torch.uint8),
        "acts": rules.no_acts,
        "progress": rules.no_progress,
    }
    results = [*final.values()]
    for _ in range(12):
        acts, legal = native.seat(drawn(games * agents, 3, most=houses + 1), None)
        happens = NightEvents(
            drawn(houses, games, most=5).to(torch.uint8),
            drawn(houses, games, most=9) == 0,
            drawn(houses, 2, games, most=3) == 0 if rules.continuous else None,
        )
        state, reward, terminated = native.move(state, acts, happens)
        age += 1
        results += [part.clone() for part in state.values()]
        results += [reward, terminated, native.see(state), torch.tensor(legal)]
        state = native.restart(state, terminated, drawn(houses, games, most=6) == 0)
    uniform = drawn(houses, games, most=1024).float() / 1024
    for own in params:
        results += native.evaluate(own, uniform).values()
    return results


STEP = NativeLibrary("the bucket brigade step", SOURCE, Library, digest, DIGEST)

if __name__ == "__main__":
    STEP.print_digest()
