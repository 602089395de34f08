"""A trial as the command line of one of CleanRL's scripts."""

from __future__ import annotations

import shlex

from sweepd.deploy.export.cleanrl_terms import clean_peer
from sweepd.deploy.export.sb3 import about_trial, check_algorithm
from sweepd.deploy.export.source import Source
from sweepd.deploy.export.terms import Peer
from sweepd.envs.support.errors import InputError


def command(source: Source) -> str:
    """Return the command that trains with the trial's parameters.

    Raises:
        InputError: CleanRL does not have the trial's algorithm for its observations.
    """
    peer = _peer(source)
    words = ["python", f"cleanrl/{peer.name}", "--env-id", source.environment_id]
    for name, value in peer.given(source.values).items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return f"{shlex.join(words)}\n"


def notes_of(source: Source) -> list[str]:
    """Return a sentence for everything that is lost or only similar in CleanRL's script."""
    found = [*about_trial(source), *_peer(source).notes(source.values)]
    if source.arguments:
        found.append(f"arguments of the environment have no flag: {source.arguments}")
    return found


def _peer(source: Source) -> Peer:
    check_algorithm(source, "CleanRL")
    facts = source.network
    if facts is not None and facts.image:
        raise InputError(
            f"{source.name} reads images, for which CleanRL has scripts with a network of their own "
            "(ppo_atari.py, dqn_atari.py): --to json has its parameters"
        )
    if facts is None and source.algorithm == "ppo":
        raise InputError(
            f"{source.name}: its weights are not here, so that it is not known whether its actions "
            "are choices (ppo.py) or numbers (ppo_continuous_action.py); name the folder of the "
            "study's files: --runs-dir"
        )
    return clean_peer(source.algorithm, facts is None or facts.discrete)
