"""Functions that the entry point passes to the search commands.

`optimize` does not import `deploy`, so promotion and the registry reach the search as functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweepd.optimize.objectives.games.curriculum import LoadBundle
    from sweepd.optimize.objectives.outlook import CountLooks
    from sweepd.optimize.worker.lifecycle import AfterStudy
    from sweepd.optimize.worker.worker import OnNewBest


@dataclass(frozen=True)
class Hooks:
    """None for each function that is not available.

    Attributes:
        after_study: called by the worker that closes a study, unless `--no-auto-deploy`.
        on_new_best: called between batches when the study has a new best trial. It must return at
            once and never raise.
        count_looks: returns the number of hold-out evaluations used so far on a study's bars.
        check_registry: raises InputError if the registry of promotions cannot be used; called
            before a study is created.
        load_bundle: finds champions that are opponents in games.
    """

    after_study: AfterStudy | None = None
    on_new_best: OnNewBest | None = None
    count_looks: CountLooks | None = None
    check_registry: Callable[[], object] | None = None
    load_bundle: LoadBundle | None = None
