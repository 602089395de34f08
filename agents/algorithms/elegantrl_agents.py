"""ElegantRL's own agents as a program, for algorithms that have no stacked implementation.

Each member is an agent with its own replay buffer and its own stream of random numbers; members
share only the steps of the environment. Agents learn one after the other with their own
`update_net`, which reads from the device in every gradient step: several times slower than a
stacked program. As in ElegantRL, a truncated episode counts as terminated. States are normalised
with the statistics that a member was given.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from elegantrl.agents.net import Actor, ActorDiscretePPO
from elegantrl.train.config import Config
from elegantrl.train.replay_buffer import ReplayBuffer
from torch import Tensor, nn

from sweepd.agents.algorithms.elegantrl_kinds import ElegantStats, kind_of
from sweepd.agents.algorithms.off_policy_params import SACParams
from sweepd.agents.engine.program import Act, Program
from sweepd.agents.networks.net import StateDict
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import KINDS, NetSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.support.errors import InputError

NETWORKS = ("act", "act_target", "cri", "cri_target")
STORED = ("states", "actions", "rewards", "undones")  # of a replay buffer
OPTIMIZERS = ("act_optimizer", "cri_optimizer", "alpha_optimizer")


class ElegantAgents(Program):
    """A program of `shape.slots` agents.

    Raises:
        InputError: ElegantRL 0.3.6 does not have the algorithm, or not in working order, or not for
            these actions.

    Attributes:
        agents: the agent in each slot, None where it is empty.
        buffers: their replay buffers; None where it is empty or the algorithm is on-policy.
    """

    stats_type = ElegantStats

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        self.kind = kind_of(shape.algorithm)
        agent_class = self.kind.agent_class(discrete=shape.if_discrete)
        if agent_class is None:
            takes = "numbers" if shape.if_discrete else "one of several choices"
            raise InputError(
                f"{shape.algorithm} takes actions that are {takes}; this environment's are not."
            )
        if shape.privileged_dim:
            raise InputError(f"{shape.algorithm} does not work with privileged observations.")
        if shape.horizon < 2:
            raise InputError(f"{shape.algorithm} does not work with a horizon of a single step.")
        self.algorithm = shape.algorithm
        self.agent_class, self.params_type = agent_class, self.kind.params
        super().__init__(shape, device)
        self.streams = Streams(shape.slots)
        self._generators: list[Tensor] = []  # of torch, in a rollout and its update
        self.agents: list[Any] = [None] * shape.slots
        self.buffers: list[ReplayBuffer | None] = [None] * shape.slots
        # Networks that a member's state must fit; their weights are not used.
        self._template = _networks(self._make(self.params_type(), 0))
        self._items: list[tuple[Tensor, ...] | None] = []  # of the latest rollout, per slot

    def clear_replay(self, slot: int) -> None:
        """See `Program.clear_replay`."""
        buffer = self.buffers[slot]
        if buffer is not None:
            buffer.p = buffer.cur_size = 0
            buffer.if_full = False

    def act_fn(self) -> Act:
        """See `Program.act_fn`. Empty slots return 0, or the first option."""
        networks = [copy.deepcopy(agent.act) if agent else None for agent in self.agents]

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            rows = obs.view(len(networks), -1, obs.shape[-1])
            return torch.cat(
                [self._greedy(net, own) for net, own in zip(networks, rows, strict=True)]
            )

        return act

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """See `Program.export_member`.

        The actors of DDPG and TD3 have no standard deviation; they get that of their exploration as
        `action_std_log`. Such an actor is an `ActorPPO` that acts the same.
        """
        agent, params = self.agents[slot], self._member(slot).params
        actor = _copies(agent.act)
        # Q-networks are actor and critic in one.
        critic = _copies(agent.cri_target if agent.cri is agent.act else agent.cri)
        if isinstance(agent.act, Actor):
            log_std = math.log(max(params.explore_noise_std, 1e-6))
            actor["action_std_log"] = torch.full((1, self.shape.action_dim), log_std)
        return actor, critic

    @property
    def actor_spec(self) -> NetSpec:
        """See `Program.actor_spec`."""
        if self.kind.own_network:
            return super().actor_spec
        classes = [one.__name__ for one in type(self._template["act"]).__mro__]
        if Actor.__name__ in classes:
            return NetSpec.of("ActorPPO", self.shape)
        return NetSpec.of(next(name for name in classes if name in KINDS), self.shape)

    def _greedy(self, network: Any, obs: Tensor) -> Tensor:
        """Return deterministic actions of one member in the environment's form; 0 without one."""
        shape = self.shape
        if network is None:
            if shape.if_discrete:
                return torch.zeros(len(obs), dtype=torch.int64, device=self.device)
            return torch.zeros(len(obs), shape.action_dim, dtype=obs.dtype, device=self.device)
        action: Tensor = network(obs)
        if isinstance(network, ActorDiscretePPO):  # returns the option instead of its values
            return action
        action = action.nan_to_num(nan=0.0)
        return action.argmax(1) if shape.if_discrete else action

    def _collect(self, env: VecEnv) -> None:
        shape = self.shape
        states, rewards, undones = [], [], []
        stored: list[list[tuple[Tensor, ...]]] = [[] for _ in range(shape.slots)]
        diverged = self.diverged
        self._generators = [self._seeded(slot) for slot in range(shape.slots)]
        env.draw(shape.horizon)
        for step in range(shape.horizon):
            states.append(self.obs.clone())
            actions = []
            for slot, agent in enumerate(self.agents):
                rows = self._rows(states[-1], slot)
                explored = None
                # A diverged member's rows continue with the actions of an empty slot.
                if agent is not None and not diverged[slot]:
                    explored = self._try_explore(slot, rows, step)
                    diverged[slot] = explored is None
                if explored is None:
                    stored[slot].clear()
                    actions.append(self._greedy(None, rows))
                else:
                    stored[slot].append(explored)
                    actions.append(self._to_env(agent, explored[0]))
            result = env.step(torch.cat(actions), out=self.obs)
            rewards.append(result.reward.clone())
            undones.append((~(result.terminated | result.truncated)).to(self.obs.dtype))
        every = [torch.stack(parts) for parts in (states, rewards, undones)]
        self._reward = every[1].view(shape.horizon, shape.slots, -1).mean((0, 2))
        self._items = [
            self._items_of(slot, chosen, every) if chosen else None
            for slot, chosen in enumerate(stored)
        ]

    def _try_explore(self, slot: int, rows: Tensor, step: int) -> tuple[Tensor, ...] | None:
        """Return the result of `_explore`; None, and mark the member, if it has diverged."""
        try:
            with self._stream(slot):
                return self._explore(slot, rows, step)
        except (ValueError, RuntimeError):
            # torch's distributions raise for values that are not finite; anything else is a bug of
            # sweepd's.
            if _finite(self.agents[slot]) and bool(torch.isfinite(rows).all()):
                raise
            self._diverged[slot] = True
            return None

    def _items_of(
        self, slot: int, chosen: list[tuple[Tensor, ...]], every: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return one member's rollout as ElegantRL's agents store it, (horizon, num_envs, …) each.

        Args:
            slot: its slot.
            chosen: what `_explore` returned at each step.
            every: (horizon, G * num_envs, …) states, rewards and undones.
        """
        self.agents[slot].last_state = self._rows(self.obs, slot).clone()
        # `_rows` cuts the first dimension; here, the rows are the second one.
        states, rewards, undones = (
            self._rows(part.transpose(0, 1), slot).transpose(0, 1) for part in every
        )
        actions = (torch.stack(part) for part in zip(*chosen, strict=True))
        return states, *actions, rewards * self._member(slot).params.reward_scale, undones

    def _explore(self, slot: int, state: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return (action,), or on-policy (action, log-probability), as ElegantRL's loops do."""
        agent, shape, rows = self.agents[slot], self.shape, self.shape.num_envs
        collected = self._collected(slot) + step * rows
        if self.kind.replays and collected < self._member(slot).params.warmup:
            if shape.if_discrete:
                return (torch.randint(shape.action_dim, size=(rows, 1)).to(self.device),)
            return ((torch.rand(rows, shape.action_dim) * 2 - 1.0).to(self.device),)
        found = agent.act.get_action(state)
        if self.kind.replays:
            return (found,)
        action, log_prob = found
        return (action.unsqueeze(1) if shape.if_discrete else action), log_prob

    def _to_env(self, agent: Any, action: Tensor) -> Tensor:
        if self.shape.if_discrete:
            return action[:, 0].to(torch.int64)
        if not self.kind.replays:  # stored before tanh
            action = agent.act.convert_action_for_env(action)
        return action.nan_to_num(nan=0.0)

    def _learn(self) -> ElegantStats:
        shape = self.shape
        figures = torch.zeros(3, shape.slots)
        steps = shape.epochs * shape.samples // shape.minibatch
        if self.kind.replays:
            steps = shape.updates
        for slot, (agent, items) in enumerate(zip(self.agents, self._items, strict=True)):
            if agent is None or items is None:
                continue
            buffer = self.buffers[slot]
            if buffer is not None:
                buffer.update(items)
                if self._collected(slot) + shape.samples < self._member(slot).params.warmup:
                    continue
                self._set_rates(slot)
            with self._stream(slot), torch.enable_grad():
                try:
                    losses = agent.update_net(items if buffer is None else buffer)
                except (ValueError, RuntimeError):
                    if _finite(agent):  # as in `_try_explore`
                        raise
            if _finite(agent):
                figures[:, slot] = torch.tensor([*losses[:2], steps])
            else:
                self._diverged[slot] = True
        critic_loss, actor_objective, updates = figures.to(self.device)
        return ElegantStats(self._reward, critic_loss, actor_objective, updates)

    def _set_rates(self, slot: int) -> None:
        """Set the learning rates of this rollout."""
        member = self._member(slot)
        decay = member.learning_rate / member.params.learning_rate
        for optimizer in _optimizers(self.agents[slot]).values():
            group = optimizer.param_groups[0]
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * decay

    @contextmanager
    def _stream(self, slot: int) -> Iterator[None]:
        """Within this context, torch's global random numbers are the member's own.

        ElegantRL draws from the global generators. CUDA's gets its seed from the CPU's.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.set_rng_state(self._generators[slot])
            if cuda:
                torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            yield
            self._generators[slot] = torch.get_rng_state()

    def _seeded(self, slot: int) -> Tensor:
        """Return the state of a CPU's generator for a rollout, from the member's stream."""
        seed = int(self.streams.member_uniform(slot, 1) * 2.0**53)
        return torch.Generator().manual_seed(seed).get_state()

    def _make(self, params: Any, seed: int) -> Any:
        """Construct an agent whose weights come from this seed."""
        shape, config = self.shape, self._config(params)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            agent = self.agent_class(
                config.net_dims,
                shape.state_dim,
                shape.action_dim,
                gpu_id=_gpu(self.device),
                args=config,
            )
        if isinstance(params, SACParams):
            agent.target_entropy = -params.target_entropy * shape.action_dim
            agent.alpha_log.data.fill_(math.log(params.initial_alpha))
        for optimizer in _optimizers(agent).values():
            optimizer.param_groups[0].update(eps=params.adam_eps, weight_decay=params.weight_decay)
        return agent

    def _config(self, params: Any) -> Config:
        """Return ElegantRL's configuration for a member's hyperparameters."""
        shape = self.shape
        args = {
            "env_name": shape.algorithm,
            "num_envs": shape.num_envs,
            "max_step": shape.horizon,
            "state_dim": shape.state_dim,
            "action_dim": shape.action_dim,
            "if_discrete": shape.if_discrete,
        }
        config = Config(self.agent_class, None, args)
        config.net_dims = shape.net_dims
        config.batch_size = shape.minibatch
        config.horizon_len = shape.horizon
        config.learning_rate = params.learning_rate
        config.gamma = params.gamma
        config.clip_grad_norm = params.max_grad_norm
        if self.kind.replays:
            config.soft_update_tau = params.soft_update_tau
            # ElegantRL makes int(steps * repeat_times) updates; 0.5 guards against rounding.
            config.repeat_times = (shape.updates + 0.5) / shape.horizon
        else:
            config.lambda_gae_adv = params.gae_lambda
            # ElegantRL's on-policy buffer counts steps instead of transitions.
            config.repeat_times = float(shape.epochs * shape.num_envs)
        for name, theirs in (("clip", "ratio_clip"), ("entropy_coef", "lambda_entropy")):
            setattr(config, theirs, getattr(params, name, 0.0))
        # Those that a kind does not have keep ElegantRL's defaults, which it does not read.
        for name in ("explore_rate", "explore_noise_std", "policy_noise_std"):
            if hasattr(params, name):
                setattr(config, name, getattr(params, name))
        return config

    def _occupy_agent(self, slot: int, params: Any, seed: int) -> None:
        shape = self.shape
        self.agents[slot] = self._make(params, seed)
        if self.kind.replays:
            self.buffers[slot] = ReplayBuffer(
                shape.buffer // shape.num_envs,
                shape.state_dim,
                1 if shape.if_discrete else shape.action_dim,
                gpu_id=_gpu(self.device),
                num_envs=shape.num_envs,
            )

    def _fresh(
        self, slot: int, params: Any, seed: int, state_avg: Tensor, state_std: Tensor
    ) -> None:
        self._occupy_agent(slot, params, derive_seed(seed, "weights"))
        for network in _networks(self.agents[slot]).values():
            network.get_parameter("state_avg").data.copy_(state_avg)
            network.get_parameter("state_std").data.copy_(state_std)

    def _clear(self, slot: int) -> None:
        self.agents[slot] = self.buffers[slot] = None

    def _save(self, slot: int) -> dict[str, Tensor]:
        agent, buffer = self.agents[slot], self.buffers[slot]
        state = {
            f"{name}.{part}": tensor
            for name, network in _networks(agent).items()
            for part, tensor in network.state_dict().items()
        }
        for name, optimizer in _optimizers(agent).items():
            for index, moments in optimizer.state_dict()["state"].items():
                state |= {f"{name}.{index}.{part}": tensor for part, tensor in moments.items()}
        if hasattr(agent, "alpha_log"):
            state["alpha_log"] = agent.alpha_log
        if hasattr(agent, "obj_c"):
            state["obj_c"] = torch.tensor(agent.obj_c, dtype=torch.float64)
        if buffer is not None:
            for part in STORED:
                state[f"replay.{part}"] = getattr(buffer, part)[: buffer.cur_size]
            state["replay.next"] = torch.tensor(buffer.p)
            state["replay.full"] = torch.tensor(buffer.if_full)
        return state

    def _check_state(self, slot: int, state: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        for name, network in self._template.items():
            for part, target in network.state_dict().items():
                given = state.get(f"{name}.{part}")
                if given is None or given.shape != target.shape:
                    found = "missing" if given is None else str(tuple(given.shape))
                    raise InputError(
                        f"The member's {name}.{part} is {found}, not {tuple(target.shape)}."
                    )
        wanted = [f"replay.{part}" for part in (*STORED, "next", "full")]
        if self.kind.replays and not set(wanted) <= set(state):
            raise InputError(f"A member's state must hold {wanted}, and holds {sorted(state)}.")

    def _load(self, slot: int, state: Mapping[str, Tensor], params: Any) -> None:
        self._occupy_agent(slot, params, 0)
        agent, buffer = self.agents[slot], self.buffers[slot]
        for name, network in _networks(agent).items():
            network.load_state_dict(_under(name, state))
        for name, optimizer in _optimizers(agent).items():
            moments: dict[int, dict[str, Tensor]] = {}
            for key, tensor in _under(name, state).items():
                index, _, part = key.partition(".")
                moments.setdefault(int(index), {})[part] = tensor.clone()
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": moments, "param_groups": groups})
        if "alpha_log" in state:
            agent.alpha_log.data.copy_(state["alpha_log"])
        if "obj_c" in state:
            agent.obj_c = float(state["obj_c"])
        agent.last_state = None
        if buffer is not None:
            buffer.p, buffer.if_full = int(state["replay.next"]), bool(state["replay.full"])
            buffer.cur_size = state["replay.states"].shape[0]
            for part in STORED:
                getattr(buffer, part)[: buffer.cur_size] = state[f"replay.{part}"].to(self.device)


def _networks(agent: Any) -> dict[str, nn.Module]:
    return _distinct(agent, NETWORKS)


def _optimizers(agent: Any) -> dict[str, torch.optim.Optimizer]:
    return _distinct(agent, OPTIMIZERS)


def _distinct(agent: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the attributes that an agent has, without those that are another one's object."""
    found: dict[str, Any] = {}
    for name in names:
        part = getattr(agent, name, None)
        if part is not None and all(part is not other for other in found.values()):
            found[name] = part
    return found


def _finite(agent: Any) -> bool:
    return all(
        bool(torch.isfinite(part).all())
        for net in _networks(agent).values()
        for part in net.parameters()
    )


def _copies(network: nn.Module) -> StateDict:
    return {name: part.detach().to("cpu", copy=True) for name, part in network.state_dict().items()}


def _under(name: str, state: Mapping[str, Tensor]) -> StateDict:
    return {
        key.removeprefix(f"{name}."): part
        for key, part in state.items()
        if key.startswith(f"{name}.")
    }


def _gpu(device: torch.device) -> int:
    return (device.index or 0) if device.type == "cuda" else -1
