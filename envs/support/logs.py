"""Output of long-running commands: to the screen and to a rotating file, as plain text or JSON."""

from __future__ import annotations

import io
import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.passwords import hide_password
from sweepd.envs.support.terminal import Terminal

FORMATS = ("plain", "json")
LIBRARIES = ("optuna", "py.warnings")  # loggers that also write to the file
MAX_BYTES, BACKUPS = 10_000_000, 5
WIDTH = 160  # columns of tables in logs


class _Plain(logging.Formatter):
    """Date, time and message, with passwords of URLs hidden."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return hide_password(super().format(record))


class _Json(logging.Formatter):
    """One JSON object per line (ASCII): time (UTC), level, message without passwords, fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": hide_password(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = hide_password(self.formatException(record.exc_info))
        return json.dumps(entry, default=str)


class _Lines(io.TextIOBase):
    """A text file whose lines become log records."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger, self._begun = logger, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._logger.info("%s", line.rstrip())
        return len(text)


class LogConsole(Terminal):
    """A console that copies all output to a rotating file and can print JSON lines.

    Args:
        log_file: the copy, of at most 10 MB; five older files are kept. None: no copy.
        log_format: "plain" or "json", for the file and for non-tabular output.

    Raises:
        InputError: the format is unknown, or the file cannot be written.
    """

    def __init__(self, log_file: Path | None = None, log_format: str = "plain") -> None:
        if log_format not in FORMATS:
            raise InputError(
                f"--log-format {log_format!r} is not known; choose one of {', '.join(FORMATS)}"
            )
        self._shown: logging.Logger | None = None
        self._kept: logging.Logger | None = None
        self._copy: Terminal | None = None
        form = _Json() if log_format == "json" else _Plain()
        if log_format == "json":
            self._shown = _logger(logging.StreamHandler(sys.stdout), form)
            super().__init__(file=_lines(self._shown), width=WIDTH, color_system=None)
        else:
            super().__init__()
        if log_file is not None:
            try:
                log_file.parent.mkdir(parents=True, exist_ok=True)
                handler = RotatingFileHandler(
                    log_file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8"
                )
            except OSError as error:
                raise InputError(
                    f"--log-file {log_file} cannot be written ({error.strerror}); name a file in a "
                    "folder of yours"
                ) from None
            self._kept = _logger(handler, form)
            self._copy = Terminal(file=_lines(self._kept), width=WIDTH, color_system=None)
            logging.captureWarnings(True)  # as records of the logger py.warnings
            for library in LIBRARIES:
                logging.getLogger(library).addHandler(handler)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console.print` does, and copy to the file."""
        super().print(*objects, **options)
        if self._copy is not None:
            self._copy.print(*objects, **options)

    def say(self, text: str, fields: dict[str, Any]) -> None:
        """Print one line. fields: the same information as data, which JSON output includes."""
        if self._shown is not None:
            self._shown.info("%s", text, extra={"fields": fields})
        else:
            _print_line(super().print, text, dated=not self.is_terminal)
        self.keep(text, fields)

    def keep(self, text: str, fields: dict[str, Any]) -> None:
        """Write one line to the file only."""
        if self._kept is not None:
            self._kept.info("%s", text, extra={"fields": fields})

    @property
    def prints_json(self) -> bool:
        """Whether the output consists of JSON lines."""
        return self._shown is not None

    def failed(self, error: BaseException, *, expected: bool) -> None:
        """Log the error that ends the command to the file. expected: omit the traceback."""
        if self._kept is not None:
            fields: dict[str, Any] = {"event": "error", "error": type(error).__name__}
            if isinstance(error, InputError):
                fields["flags"] = error.flags
            self._kept.error(
                "%s",
                error or type(error).__name__,
                exc_info=None if expected else error,
                extra={"fields": fields},
            )


def _lines(logger: logging.Logger) -> TextIO:
    return cast(TextIO, _Lines(logger))


def _logger(handler: logging.Handler, form: logging.Formatter) -> logging.Logger:
    handler.setFormatter(form)
    # Not from logging's registry: two consoles must not share handlers.
    logger = logging.Logger("sweepd")
    logger.addHandler(handler)
    return logger


def _print_line(write: Any, text: str, *, dated: bool) -> None:
    write(
        f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}" if dated else text,
        highlight=False,
        markup=False,
        soft_wrap=dated,
    )


def say_line(console: Console, text: str, **fields: Any) -> None:
    """Print one line, with date and time unless on a terminal.

    Args:
        console: where to print.
        text: the line.
        fields: the same information as data, for JSON output.
    """
    if isinstance(console, LogConsole):
        console.say(text, fields)
    else:
        _print_line(console.print, text, dated=not console.is_terminal)
