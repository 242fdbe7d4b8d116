"""Learn to balance a pole on a cart by advantage actor-critic.

    python examples/cartpole.py [--seed 0] [--updates 500] [--folder .]

A cart is pushed left or right fifty times a second; the episode ends when the pole leans by more than 12
degrees, the cart leaves its track, or after 500 pushes (ten seconds). The actor chooses the pushes, the
critic predicts for how long the pole will stay up; pushes that turned out better than predicted are made
likelier. Sixteen carts run side by side. An untrained network lasts about 20 pushes; the last 50 episodes
of this program last more than 450 on average. Writes cartpole.png: every episode's length.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn
from kiln.distributions import Categorical

AT_LEAST = 450.0  # mean length of the last 50 episodes, of 500 possible
CARTS, STEPS = 16, 64  # an update learns from STEPS pushes of every cart
GAMMA, LAMBDA = 0.99, 0.98  # discount of later rewards; of later surprises in the estimate of an advantage


class CartPole:
    """A pole hinged on a cart: Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can
    solve difficult learning control problems", without friction. Euler steps of 0.02 s."""

    gravity, cart_mass, pole_mass, half_length, force, dt = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    limit = 500

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def reset(self) -> list[float]:
        """A new episode near the upright position; returns position, speed, angle and angular speed."""
        self.state = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.length = 0
        return self.state

    def step(self, action: int) -> tuple[list[float], bool, bool]:
        """Push left (0) or right (1) for one time step: (state, fallen, time is up)."""
        x, speed, angle, spin = self.state
        sin, cos = math.sin(angle), math.cos(angle)
        mass = self.cart_mass + self.pole_mass
        push = (self.force if action else -self.force) + self.pole_mass * self.half_length * spin**2 * sin
        inertia = self.half_length * (4 / 3 - self.pole_mass * cos**2 / mass)
        spin_rate = (self.gravity * sin - cos * push / mass) / inertia
        speed_rate = (push - self.pole_mass * self.half_length * spin_rate * cos) / mass
        rates = speed, speed_rate, spin, spin_rate
        self.state = [value + self.dt * rate for value, rate in zip(self.state, rates)]
        self.length += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return self.state, fallen, self.length >= self.limit


class ActorCritic(nn.Module):
    """(N, 4) states -> (N, 2) scores of the actions and (N,) predicted returns."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        self.critic = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(states), self.critic(states).squeeze(-1)


def advantages(rewards: Tensor, values: Tensor, last_values: Tensor, ends: Tensor) -> Tensor:
    """Generalised advantage estimates (Schulman et al., 2016), all (STEPS, CARTS) but `last_values`.

    `ends` is 1 where an episode ended with that push: nothing of the next one counts for it.
    """
    out = kiln.zeros_like(rewards)
    later, next_values = kiln.zeros_like(last_values), last_values
    for t in reversed(range(len(rewards))):
        goes_on = 1 - ends[t]
        surprise = rewards[t] + GAMMA * next_values * goes_on - values[t]
        later = surprise + GAMMA * LAMBDA * goes_on * later
        out[t], next_values = later, values[t]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)
    rng = random.Random(options.seed)

    model = ActorCritic()
    optimizer = kiln.optim.Adam(model.parameters(), lr=3e-3)
    schedule = kiln.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=options.updates)
    carts = [CartPole(rng) for _ in range(CARTS)]
    states = kiln.tensor([cart.reset() for cart in carts])
    lengths: list[int] = []
    for update in range(1, options.updates + 1):
        seen, actions, rewards, ends = [], [], [], []
        for _ in range(STEPS):
            with kiln.no_grad():
                scores, _ = model(states)
            action = Categorical(logits=scores).sample()
            seen.append(states)
            actions.append(action)
            after, reward, ended = [], [CartPole.dt] * CARTS, [0.0] * CARTS
            for i, (cart, push) in enumerate(zip(carts, action.tolist())):
                state, fallen, time_is_up = cart.step(push)
                if fallen or time_is_up:
                    if not fallen:  # it would have gone on: the critic says for how long
                        with kiln.no_grad():
                            reward[i] += GAMMA * model(kiln.tensor([state]))[1].item()
                    ended[i] = 1.0
                    lengths.append(cart.length)
                    state = cart.reset()
                after.append(state)
            states = kiln.tensor(after)
            rewards.append(reward)
            ends.append(ended)

        scores, values = model(kiln.stack(seen))  # (STEPS, CARTS, 2) and (STEPS, CARTS)
        policy = Categorical(logits=scores)
        with kiln.no_grad():
            last_values = model(states)[1]
        better = advantages(kiln.tensor(rewards), values.detach(), last_values, kiln.tensor(ends))
        returns = better + values.detach()
        better = (better - better.mean()) / (better.std() + 1e-8)
        actor_loss = -(policy.log_prob(kiln.stack(actions)) * better).mean()
        critic_loss = F.mse_loss(values, returns)
        loss = actor_loss + 0.5 * critic_loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if update % 50 == 0:
            recent = lengths[-50:]
            mean = sum(recent) / len(recent)
            print(f"update {update:4}  episodes {len(lengths):5}  mean length of the last 50 {mean:6.1f}")

    picture(lengths, options.folder / "cartpole.png")
    recent = lengths[-50:]
    print(f"result: mean_length {sum(recent) / len(recent):.1f}")


def picture(lengths: list[int], path: Path) -> None:
    """Every episode's length, and the mean of the last 50."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    means = [sum(lengths[max(0, i - 49) : i + 1]) / min(i + 1, 50) for i in range(len(lengths))]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.scatter(range(len(lengths)), lengths, s=6, color="0.7", label="one episode")
    axes.plot(means, color="tab:blue", linewidth=2, label="mean of the last 50")
    axes.set(title="Balancing a pole", xlabel="episode", ylabel="pushes until the end", ylim=(0, 520))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
