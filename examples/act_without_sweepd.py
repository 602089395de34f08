"""Load a sweepd bundle and act. Usage: act_without_sweepd.py BUNDLE OBSERVATIONS.npy ACTIONS.npy"""

import json
from hashlib import sha256
from pathlib import Path
from sys import argv

import numpy as np
from safetensors.numpy import load


def load_bundle(folder):
    manifest = json.loads(Path(folder, "bundle.json").read_text())
    claimed = manifest.pop("hash")
    files = {name: Path(folder, name).read_bytes() for name in manifest["files"]}
    canonical = json.dumps(manifest, sort_keys=True, indent=1) + "\n"
    found = [sha256(content).hexdigest() for content in (canonical.encode(), *files.values())]
    if found != [claimed, *(part["sha256"] for part in manifest["files"].values())]:
        raise SystemExit(f"{folder} has been changed since it was scored")
    trials = [{} for _ in files]  # a bundle of one trial has one file
    for trial, name in zip(trials, sorted(files), strict=True):
        header = json.loads(files[name][8 : 8 + int.from_bytes(files[name][:8], "little")])
        for key, tensor in sorted(load(files[name]).items()):
            described = json.loads(header["__metadata__"]["sweepd"])[int(key[1:4])]
            trial.setdefault(key[:4], described)[key[5:]] = tensor.astype(np.float64)
    return [list(trial.values()) for trial in trials]


ACTIVATIONS = {
    "relu": lambda z: np.maximum(z, 0.0),
    "tanh": np.tanh,
    "silu": lambda z: z / (1.0 + np.exp(-z)),
    "elu": lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
}


def shared(member, observation):
    """Pass the columns of each asset through the layer that all assets share; keep the others."""
    blocks = member["entities"]["blocks"]
    each = np.arange(member["entities"]["count"])[:, None]
    columns = np.hstack([at + each * width + np.arange(width) for at, width in blocks])
    vectors = observation[columns] @ member["entities.weight"].T + member["entities.bias"]
    return np.concatenate([np.maximum(vectors, 0.0).ravel(), np.delete(observation, columns)])


def act(members, observation):
    actions = []
    for member in members:
        hidden = (observation.astype(np.float64) - member["state_avg"]) / member["state_std"]
        if "entities" in member:
            hidden = shared(member, hidden)
        inner = [ACTIVATIONS[member.get("activation", "relu")]] * len(member["hidden"])
        for layer, activation in enumerate([*inner, np.tanh]):
            hidden = member[f"net.{2 * layer}.weight"] @ hidden + member[f"net.{2 * layer}.bias"]
            hidden = activation(hidden)
        actions.append(hidden)
    return np.round(sum(actions) / len(actions), 6)


actions = [[act(members, row) for row in np.load(argv[2])] for members in load_bundle(argv[1])]
np.save(argv[3], actions if len(actions) > 1 else actions[0])
