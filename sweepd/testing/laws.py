"""Laws of a contract: what checks raise, and how several of them are reported."""

from __future__ import annotations


class BrokenLaw(AssertionError):
    """What was tested breaks a law of its contract.

    Attributes:
        law: name of the law.
        sentence: what was found, and what would be right.
    """

    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(f"{law}: {sentence}")
        self.law, self.sentence = law, sentence


class NotChecked(Exception):
    """A law could not be checked; the message says why."""
