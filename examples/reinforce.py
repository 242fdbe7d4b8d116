"""Learn to balance a pole by REINFORCE, in sixteen environments at once: written for one, batched by one
line.

    python examples/reinforce.py [--seed 0] [--updates 60]

An episode is plain Python: it asks the policy, reads which way to push, and pushes, until the pole has
fallen. `kiln.batching.map` runs sixteen episodes that take turns where a value is read, so that the policy
sees the states of all carts in one product. Each episode has random numbers of its own, so the results have
the bits of episodes that run one after another. The gradient is Williams' (1992), with the mean return as its
baseline. An untrained policy lasts about 20 pushes; after 60 updates it lasts more than 120 of 200.
"""

from __future__ import annotations

import argparse
import math
import random
import time

import kiln
from kiln import Tensor, nn
from kiln.distributions import Categorical

AT_LEAST = 120.0  # mean length of the last 160 episodes, of 200 possible
CARTS, LONGEST, GAMMA = 16, 200, 0.98


class Cart:
    """A pole hinged on a cart (Barto, Sutton and Anderson, 1983), pushed fifty times a second."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.state = [rng.uniform(-0.05, 0.05) for _ in range(4)]  # position, speed, angle, angular speed
        self.pushes = 0

    def push(self, right: int) -> bool:
        """One push; whether the pole still stands and there is time left."""
        x, speed, angle, spin = self.state
        sin, cos = math.sin(angle), math.cos(angle)
        push = ((10.0 if right else -10.0) + 0.05 * spin**2 * sin) / 1.1
        spin_rate = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        rates = speed, push - 0.05 * spin_rate * cos / 1.1, spin, spin_rate
        self.state = [value + 0.02 * rate for value, rate in zip(self.state, rates)]
        self.pushes += 1
        return abs(self.state[0]) < 2.4 and abs(self.state[2]) < 0.21 and self.pushes < LONGEST


def episode(policy: nn.Module, cart: Cart) -> Tensor:
    """(pushes,) the log-probabilities of what was done until the pole fell."""
    chosen, stands = [], True
    while stands:
        actions = Categorical(logits=policy(kiln.tensor([cart.state])))
        action = actions.sample()
        chosen.append(actions.log_prob(action))
        stands = cart.push(int(action.item()))
    return kiln.cat(chosen)


def returns(pushes: int) -> Tensor:
    """(pushes,) the discounted number of pushes still to come."""
    return kiln.tensor([(1 - GAMMA ** (pushes - t)) / (1 - GAMMA) for t in range(pushes)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    kiln.manual_seed(options.seed)
    rng = random.Random(options.seed)

    policy = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))
    optimizer = kiln.optim.Adam(policy.parameters(), lr=3e-3)
    lengths: list[int] = []
    for update in range(1, options.updates + 1):
        carts = [Cart(rng.randrange(2**32)) for _ in range(CARTS)]
        episodes = kiln.batching.map(lambda cart: episode(policy, cart), carts)  # [... for cart in carts]
        gains = kiln.cat([returns(len(chosen)) for chosen in episodes])
        better = (gains - gains.mean()) / (gains.std() + 1e-6)
        loss = -(kiln.cat(episodes) * better).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths += [len(chosen) for chosen in episodes]
        if update % 10 == 0:
            recent = lengths[-10 * CARTS :]
            print(
                f"update {update:3}  mean length of the last {len(recent)} {sum(recent) / len(recent):6.1f}"
            )

    compare(policy)
    recent = lengths[-10 * CARTS :]
    print(f"result: mean_length {sum(recent) / len(recent):.1f}")


def compare(policy: nn.Module) -> None:
    """The times of sixteen episodes one by one and together, which are the same to the last bit."""
    seconds, results = [], []
    for limit in (1, CARTS):
        for _ in range(2):  # the first time makes kernels
            kiln.manual_seed(1)
            started = time.perf_counter()
            carts = [Cart(seed) for seed in range(CARTS)]
            done = kiln.batching.map(lambda cart: episode(policy, cart), carts, limit=limit)
            last = time.perf_counter() - started
        seconds.append(last)
        results.append([chosen.tolist() for chosen in done])
    pushes = sum(len(chosen) for chosen in results[0])
    alone, together = (f"{value / pushes * 1e6:.0f} us" for value in seconds)
    same = "same bits" if results[0] == results[1] else "NOT the same bits"
    print(f"a push one by one {alone}, {CARTS} together {together}: {seconds[0] / seconds[1]:.1f}x, {same}")


if __name__ == "__main__":
    main()
