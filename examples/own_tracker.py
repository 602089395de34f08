"""A tracker of your own: here, one file of JSON lines per trial.

PYTHONPATH=examples sweepd train --env cartpole --n-trials 8 --track own_tracker:LinesRuns
"""

import json
from pathlib import Path

from sweepd.parts import Picture, Sent


class LinesRuns:
    """Appends what is new in each picture. The trainer passes `folder`, that of the study."""

    def __init__(self, folder, name="lines"):
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True, exist_ok=True)

    def send(self, picture, sent):
        """Bring a trial up to date. `sent` says what an earlier call or process has sent."""
        if picture.is_ended and sent.state == picture.state:
            return
        path = self.folder / f"{picture.key}.jsonl"
        if not sent.run:
            path.write_text(json.dumps({"name": picture.name, "params": picture.params}) + "\n")
            sent.run = picture.key
        for step, metrics in sorted(picture.points.items()):
            if step not in sent.steps:
                self.append(path, {"step": step, **metrics})
                sent.steps.append(step)
        if picture.is_ended:
            self.append(path, {"state": picture.state, **picture.final})
        sent.state = picture.state

    def append(self, path, line):
        """Add a line to a file."""
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def close(self):
        """Leave the files of unfinished trials as they are: the next worker goes on."""


def main() -> None:
    """Send two pictures of a trial that reports two rungs and ends."""
    runs, sent = LinesRuns("."), Sent()
    params, points = {"learning_rate": 0.001}, {2048: {"rung_value": 21.5}}
    runs.send(Picture(key="0", name="trial 0", group="s", params=params, points=points), sent)
    points = points | {4096: {"rung_value": 87.0}}
    runs.send(
        Picture(key="0", name="trial 0", group="s", params=params, points=points, state="COMPLETE"),
        sent,
    )
    print(Path("lines/0.jsonl").read_text())


if __name__ == "__main__":
    main()
