"""Independence of rows: slots, batch mates, threads, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.params import EnvParams
from tests.envs.market_samples import WINDOWS, random_actions, random_params, run, sample_market


def members_results(
    market: Market,
    params: Sequence[EnvParams],
    seeds: Sequence[int],
    actions: dict[int, Tensor],
    per_member: int,
) -> dict[int, list[Tensor]]:
    """Return each member's results in that batch; members are identified by their seeds."""
    env = CryptoEnv(
        market, params, WINDOWS, per_member, max_lookback=4, privileged_age=True, accounts=True
    )
    env.reset(seeds)
    env.draw(100)
    made = run(env, torch.cat([actions[seed] for seed in seeds], dim=1))
    results = {}
    for slot, seed in enumerate(seeds):
        rows = slice(slot * per_member, (slot + 1) * per_member)
        results[seed] = [
            part[..., rows] if part.dtype == torch.float64 else part[rows] for part in made
        ]
    return results


@pytest.mark.parametrize(("per_member", "assets"), [(1, 3), (5, 3), (13, 7)])
def test_a_members_numbers_do_not_depend_on_its_slot_or_the_batch(
    per_member: int, assets: int
) -> None:
    market = sample_market(4, assets=assets, hole_share=0.1)
    params = [
        EnvParams(episode_bars=30),
        *(random_params(seed, lookback=1 + seed % 4) for seed in range(1, 6)),
    ]
    actions = {seed: random_actions(seed, 100, per_member, assets) for seed in range(6)}
    together = members_results(market, params, range(6), actions, per_member)
    order = [3, 0, 5, 1, 4, 2]
    turned = members_results(market, [params[i] for i in order], order, actions, per_member)
    for seed in range(6):
        alone = members_results(market, [params[seed]], [seed], actions, per_member)
        for one, two, three in zip(alone[seed], together[seed], turned[seed], strict=True):
            assert torch.equal(one, two)
            assert torch.equal(one, three)


def test_many_rows_on_two_threads_equal_few_on_one() -> None:
    market = sample_market(4, assets=7)
    small, large = (CryptoEnv(market, EnvParams(), [(5, 290)], rows) for rows in (6001, 6001))
    actions = random_actions(0, 12, 6001, 7)
    small.reset([9])
    one = run(small, actions)
    torch.set_num_threads(2)
    large.reset([9])
    for single, double in zip(one, run(large, actions), strict=True):
        assert torch.equal(single, double)


def test_a_member_resumes_exactly_in_another_slot(tmp_path: Path) -> None:
    market = sample_market(2, hole_share=0.1)
    active = {
        "trailing_stop": 0.02,
        "max_holding_bars": 7,
        "time_decay_floor": 0.1,
        "drawdown_penalty": 0.5,
    }
    params = random_params(3, episode_bars=25, **active)
    source = CryptoEnv(market, [EnvParams(), params], WINDOWS, 4, stagger=True, privileged_age=True)
    source.reset([1, 2])
    source.draw(40)
    actions = random_actions(0, 130, 4, 3)
    both = torch.cat([random_actions(1, 130, 4, 3), actions], dim=1)
    run(source, both[:31])
    save_file(source.get_member(1), tmp_path / "member.safetensors")
    seen = source.observe()[4:]
    final = source.final_obs()[4:].clone()
    expected = run(source, both[31:])

    company = [random_params(8), EnvParams(episode_bars=9), EnvParams()]
    other = CryptoEnv(market, company, WINDOWS, 4, privileged_age=True)
    other.reset(77)
    run(other, random_actions(5, 17, 12, 3))
    other.configure_member(0, params, WINDOWS)
    other.set_member(0, load_file(tmp_path / "member.safetensors"))
    assert torch.equal(other.observe()[:4], seen)
    assert torch.equal(other.final_obs()[:4], final)
    both = torch.cat([actions[31:], random_actions(6, 99, 8, 3)], dim=1)
    for one, two in zip(expected, run(other, both), strict=True):
        assert torch.equal(
            one[..., 4:] if one.dtype == torch.float64 else one[4:],
            two[..., :4] if two.dtype == torch.float64 else two[:4],
        )
    assert torch.equal(source.final_obs()[4:], other.final_obs()[:4])


def test_reusing_a_slot_does_not_change_other_members() -> None:
    market = sample_market(2)
    kept, changed = (
        CryptoEnv(market, [EnvParams(), EnvParams(fee=0.01)], WINDOWS, 3) for _ in range(2)
    )
    for env in (kept, changed):
        env.reset([1, 2])
        run(env, random_actions(0, 20, 6, 3))
    changed.configure_member(1, EnvParams(episode_bars=7, trailing_stop=0.01), [(20, 60)])
    changed.reset_member(1, 5)
    actions = random_actions(3, 60, 6, 3)
    for one, two in zip(run(kept, actions), run(changed, actions), strict=True):
        assert torch.equal(
            one[..., :3] if one.dtype == torch.float64 else one[:3],
            two[..., :3] if two.dtype == torch.float64 else two[:3],
        )
    assert 20 <= int(changed.bars()[3:].min()) <= int(changed.bars()[3:].max()) <= 60
