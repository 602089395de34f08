"""Roles: groups of an environment's agents, each of which has one policy (`--roles`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sweepd.envs.support.errors import InputError

KEY = "roles"  # among the parameters of an environment, which studies record
FLAG = "--roles"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Roles:
    """Who plays what.

    Attributes:
        names: of the roles.
        agents: for each role, the indices of its agents in `possible_agents`.
    """

    names: tuple[str, ...]
    agents: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """Rows of a role in a game: the agents of the largest one."""
        return max(map(len, self.agents))

    @property
    def of_agents(self) -> tuple[int, ...]:
        """The index of each agent's role, in the order of `possible_agents`."""
        pairs = [(agent, role) for role, own in enumerate(self.agents) for agent in own]
        return tuple(role for _, role in sorted(pairs))


NO_ROLES = Roles((), ())  # of games whose members are no roles


def parse_roles(text: str) -> dict[str, tuple[str, ...]]:
    """Return the patterns of agents by role, of `NAME=PATTERN,PATTERN;NAME=PATTERN`.

    Raises:
        InputError: it is not of that form.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, listed = (piece.strip() for piece in part.partition("="))
        patterns = tuple(pattern.strip() for pattern in listed.split(","))
        if not equals or not _NAME.fullmatch(name) or not all(patterns) or name in found:
            raise InputError(
                f"{FLAG} {text!r}: {part!r} must be ROLE=AGENT,AGENT with a name of its own, such "
                "as 'hunter=wolf_0,wolf_1;prey=hare_*'"
            )
        found[name] = patterns
    if not found:
        raise InputError(f"{FLAG} {text!r} has no role, such as 'hunter=wolf_*;prey=hare_*'")
    return found


def assign_roles(text: str, possible_agents: Sequence[Any]) -> Roles:
    """Return the roles of an environment's agents.

    Args:
        text: see `parse_roles`; `*`, `?` and `[…]` in a pattern are as in file names.
        possible_agents: names of the agents.

    Raises:
        InputError: an agent has no role or several, or a pattern is that of no agent.
    """
    roles = parse_roles(text)
    agents = [str(agent) for agent in possible_agents]
    every: dict[str, list[int]] = {name: [] for name in roles}
    for index, agent in enumerate(agents):
        own = [
            name
            for name, patterns in roles.items()
            if any(fnmatchcase(agent, pattern) for pattern in patterns)
        ]
        if len(own) != 1:
            named = f"the roles {' and '.join(own)}" if own else "no role"
            raise InputError(
                f"{FLAG} {text!r} gives agent {agent!r} {named}; each of {', '.join(agents)} must "
                f"have one, such as {FLAG} {shlex.quote(suggested_roles(agents))}"
            )
        every[own[0]].append(index)
    for name, patterns in roles.items():
        for pattern in patterns:
            if not any(fnmatchcase(agent, pattern) for agent in agents):
                raise InputError(
                    f"{FLAG} {text!r}: {pattern!r} of role {name} is no agent; there are: "
                    f"{', '.join(agents)}"
                )
    return Roles(tuple(every), tuple(map(tuple, every.values())))


def suggested_roles(agents: Sequence[Any]) -> str:
    """Return roles by the agents' names without their numbers: `wolf=wolf_*;hare=hare_*`."""
    groups: dict[str, list[str]] = {}
    for agent in map(str, agents):
        stem = re.sub(r"[_-]?\d+$", "", agent) or agent
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_") or "agent"
        groups.setdefault(name, []).append(agent)
    return ";".join(f"{name}={','.join(own)}" for name, own in groups.items())
