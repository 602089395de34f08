"""Types of `import sweepd` for programs that use it: a single module has no place for py.typed."""

from typing import Any

from sweepd.deploy.api.policy import Policy as Policy
from sweepd.deploy.api.policy import evaluate as evaluate
from sweepd.deploy.api.policy import load_policy as load_policy
from sweepd.deploy.api.promotion import promote as promote
from sweepd.envs.support.errors import InputError as InputError
from sweepd.envs.support.errors import RunError as RunError
from sweepd.optimize.api.study import Study as Study
from sweepd.optimize.api.study import list_studies as list_studies
from sweepd.optimize.api.study import load_study as load_study

def create_study(name: str | None = None, **settings: Any) -> Study: ...
def main() -> None: ...
