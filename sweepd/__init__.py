"""The public names of sweepd, and its packages envs, agents, optimize and deploy.

A name is imported when it is first used, so that processes which need one package import only that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sweepd.envs.support.huge_pages import request_huge_pages
from sweepd.envs.support.lazy import lazy_names
from sweepd.envs.support.mkl import request_mode
from sweepd.envs.support.openblas import request_one_thread

if TYPE_CHECKING:
    from sweepd.deploy.api.champion import load_champion as load_champion
    from sweepd.deploy.api.policy import Policy as Policy
    from sweepd.deploy.api.policy import evaluate as evaluate
    from sweepd.deploy.api.policy import load_policy as load_policy
    from sweepd.deploy.api.promotion import promote as promote
    from sweepd.envs.support.errors import InputError as InputError
    from sweepd.envs.support.errors import RunError as RunError
    from sweepd.function import Trial as Trial
    from sweepd.hooks import create_study as create_study
    from sweepd.optimize.api.study import Callback as Callback
    from sweepd.optimize.api.study import Study as Study
    from sweepd.optimize.api.study import list_studies as list_studies
    from sweepd.optimize.api.study import load_study as load_study
    from sweepd.optimize.study.space.objects import choice as choice
    from sweepd.optimize.study.space.objects import log_float as log_float
    from sweepd.optimize.study.space.objects import log_int as log_int
    from sweepd.optimize.study.space.objects import uniform_float as uniform_float
    from sweepd.optimize.study.space.objects import uniform_int as uniform_int
    from sweepd.program import checkpoint_dir as checkpoint_dir
    from sweepd.program import out_dir as out_dir
    from sweepd.program import params as params
    from sweepd.program import report as report

# The only import side effects in this project. MKL reads its mode at its first product, OpenBLAS its
# threads when NumPy is imported, and torch the kind of pages at its first tensor, so they are set
# before any module of sweepd computes. A program
# of a study (`--env command:…`) imports this for its reports, and computes as it does without.
if "SWEEPD_PARAMS" not in os.environ:
    request_mode()
    request_one_thread()
    request_huge_pages()

_MODULES = {
    "Callback": "sweepd.optimize.api.study",
    "InputError": "sweepd.envs.support.errors",
    "Policy": "sweepd.deploy.api.policy",
    "RunError": "sweepd.envs.support.errors",
    "Study": "sweepd.optimize.api.study",
    "Trial": "sweepd.function",
    "checkpoint_dir": "sweepd.program",
    "choice": "sweepd.optimize.study.space.objects",
    "create_study": "sweepd.hooks",
    "evaluate": "sweepd.deploy.api.policy",
    "list_studies": "sweepd.optimize.api.study",
    "load_champion": "sweepd.deploy.api.champion",
    "load_policy": "sweepd.deploy.api.policy",
    "load_study": "sweepd.optimize.api.study",
    "log_float": "sweepd.optimize.study.space.objects",
    "log_int": "sweepd.optimize.study.space.objects",
    "out_dir": "sweepd.program",
    "params": "sweepd.program",
    "promote": "sweepd.deploy.api.promotion",
    "report": "sweepd.program",
    "uniform_float": "sweepd.optimize.study.space.objects",
    "uniform_int": "sweepd.optimize.study.space.objects",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # type checkers report names that do not exist
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
