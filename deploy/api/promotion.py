"""Promotion in Python: the same as `sweepd promote`."""

from __future__ import annotations

import dataclasses
from typing import Any

from sweepd.deploy.api.policy import OpenStudy
from sweepd.deploy.cli.promote import PromotionTask
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.promotion import Promotion
from sweepd.deploy.promotion.studies import find_study
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import read_flags
from sweepd.envs.support.terminal import Terminal

SOURCE = "promote"
OF_STUDY = ("study_name", "storage", "runs_dir")  # known from the study
OF_COMMAND = ("as_json",)  # output of the command


def promote(study: OpenStudy, **settings: Any) -> Promotion[Any]:
    """Judge a study's candidates by the gate, and make the best one champion if it passes.

    Args:
        study: the study.
        **settings: the flags of `sweepd promote`, with _ for -: for example `trial=3`,
            `dry_run=True`, `slot="crypto-1h"`, `looks=2`, `ensemble=3`, `data_dir="bars"`,
            `limit=["max-drawdown=0.3"]`, `deployments="deployments"`.

    Returns:
        The outcome: `outcome` ("promoted", "none passes", …), `reason` in a sentence, `slot`,
        `champion` (a bundle's hash), and `to_dict()` with every rule's value and limit. Nothing
        that fails the gate raises.

    Raises:
        InputError: a setting is wrong, or study, bars or registry cannot be used.
        RunError: the registry failed, or the champion kept changing.
    """
    for name in (*OF_STUDY, *OF_COMMAND):
        if name in settings:
            raise InputError(f"{SOURCE}: {name} is not a setting here; the study is the argument")
    of_registry = {field.name for field in dataclasses.fields(RegistryFlags)}
    own = {name: value for name, value in settings.items() if name not in of_registry}
    registry = {name: value for name, value in settings.items() if name in of_registry}
    flags, _ = read_flags(PromoteFlags, own, SOURCE)
    where, _ = read_flags(RegistryFlags, registry, SOURCE)
    found = find_study(study.name, study.storage, study.runs_dir)
    task = PromotionTask(found, where.open(create=True), Terminal(), flags)
    promotion = task.run(flags.trial)
    if not (flags.without_looks or flags.dry_run):
        task.publish(promotion)
    return promotion
