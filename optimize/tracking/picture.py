"""What a tracker shall show of one trial or run.

A picture is complete: it replaces all earlier ones of its run. So pictures may be merged, sent
twice, or sent late, and a tracked run still ends with the same content.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

RUNNING, FAILED = "RUNNING", "FAIL"
RUNG_VALUE = "rung_value"  # what the trial reported at a rung
EVALUATION = "evaluation"  # the value of an evaluation beside rungs
POINT_METRICS = (RUNG_VALUE, EVALUATION)  # every point has one of them


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One trial or run, as a tracker shows it.

    Attributes:
        key: identifies the run for ever; letters, digits and -.
        name: shown name.
        group: the study.
        params: exact values by name.
        tags: text by name.
        points: metrics by environment steps per member, one entry per rung and per
            evaluation beside rungs.
        final: final values by name; empty while the run continues.
        links: paths and URIs by name.
        state: "RUNNING", or the final state: COMPLETE, PRUNED or FAIL.
        started: seconds since 1970, None if unknown.
        ended: the same of the end.
    """

    key: str
    name: str
    group: str
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: dict[int, dict[str, float]] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    state: str = RUNNING
    started: float | None = None
    ended: float | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the run has reached its final state."""
        return self.state != RUNNING

    def over(self, older: Picture) -> Picture:
        """Return this picture with what only the older one knows, such as metrics of a rung."""
        steps = sorted({*older.points, *self.points})
        return dataclasses.replace(
            self,
            params={**older.params, **self.params},
            points={s: {**older.points.get(s, {}), **self.points.get(s, {})} for s in steps},
            links={**older.links, **self.links},
        )

    def to_json(self) -> str:
        """Return one line of JSON, for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Picture:
        """Read a picture that `to_json` wrote."""
        fields = json.loads(text)
        points = {int(step): metrics for step, metrics in fields.pop("points").items()}
        return Picture(points=points, **fields)


@dataclass
class Sent:
    """What has been sent of one run, kept in a file beside the study.

    Attributes:
        run: the tracker's own id of the run; "" before it was created.
        steps: points that were sent.
        state: the last state that was sent; "" before.
    """

    run: str = ""
    steps: list[int] = field(default_factory=list)
    state: str = ""

    def to_json(self) -> str:
        """Return JSON, for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Sent:
        """Read what `to_json` wrote; an empty or damaged file stands for nothing sent."""
        try:
            return Sent(**json.loads(text))
        except (ValueError, TypeError):
            return Sent()
