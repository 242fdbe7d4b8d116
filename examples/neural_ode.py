"""Learn the law of motion behind a curve: a neural ordinary differential equation.

    python examples/neural_ode.py [--steps 1500] [--seed 1] [--folder .]

A point runs down a spiral, and 400 noisy places of it are known. A network f is to be found with dx/dt =
f(x): from one place it is integrated by the method of Runge and Kutta to the next ones, and the gradient of
what it misses comes from integrating the adjoint equation backward in time, without remembering the way (Chen
et al., 2018, https://arxiv.org/abs/1806.07366). Started at the first place, the solution stays within about
0.02 of the true curve, all the way down. Writes neural_ode.png: the curve, and the field that was learned.
"""

import argparse
from pathlib import Path

import kiln
from kiln import nn, optim

AT_MOST = 0.1  # the result: mean distance between the true curve and the learned one
TIME, PLACES, NOISE = 20.0, 400, 0.02
SEGMENT, BATCH = 10, 64  # places that are predicted from one, and segments in a batch


class Field(nn.Module):
    """Points (N, 2) -> their velocities (N, 2)."""

    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
        )

    def forward(self, x):
        return self.net(x)


def rk4(f, x, dt):
    """The state one step of time later; a state is a tuple of tensors, f gives their derivatives."""

    def moved(k, dt):
        return tuple(a + dt * b for a, b in zip(x, k))

    k1 = f(x)
    k2 = f(moved(k1, dt / 2))
    k3 = f(moved(k2, dt / 2))
    k4 = f(moved(k3, dt))
    return moved([(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4)], dt)


class Solve(kiln.autograd.Function):
    """x at times 0, dt, 2 dt, ...: (count + 1, N, 2). Backward keeps nothing but these."""

    @staticmethod
    def forward(ctx, field, x, dt, count, *parameters):
        way = [x]
        for _ in range(count):
            way.append(rk4(lambda s: (field(s[0]),), (way[-1],), dt)[0])
        way = kiln.stack(way)
        ctx.field, ctx.dt = field, dt
        ctx.save_for_backward(way, *parameters)
        return way

    @staticmethod
    def backward(ctx, gradient):
        way, *parameters = ctx.saved_tensors

        def adjoint(state):
            """Backward in time: of the point, of its gradient, and of the gradients of the parameters."""
            x, a = state[0].detach().requires_grad_(), state[1]
            with kiln.enable_grad():
                velocity = ctx.field(x)
            of_x, *of_parameters = kiln.autograd.grad(velocity, [x, *parameters], a)
            return (-velocity.detach(), of_x, *of_parameters)

        state = (way[-1], gradient[-1], *(kiln.zeros_like(p) for p in parameters))
        for i in range(len(way) - 2, -1, -1):
            _, a, *of_parameters = rk4(adjoint, state, ctx.dt)
            state = (way[i], a + gradient[i], *of_parameters)
        return (None, state[1], None, None, *state[2:])


def solve(field, x, dt, count):
    return Solve.apply(field, x, dt, count, *field.parameters())


def spiral():
    """The true curve (PLACES, 2): dx/dt = x**3 A / |x|**2, each step in ten."""
    matrix = kiln.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    x, way = (kiln.tensor([[2.0, 0.0]]),), []
    for _ in range(PLACES):
        way.append(x[0][0])
        for _ in range(10):
            x = rk4(lambda s: (s[0] ** 3 @ matrix / s[0].square().sum(),), x, TIME / PLACES / 10)
    return kiln.stack(way)


@kiln.no_grad()
def draw(field, truth, seen, found, path):
    """Left, the true curve, what was seen of it, and the learned one; right, the learned field."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), layout="constrained", sharex=True, sharey=True)
    left.plot(*seen.T.numpy(), ".", color="tab:gray", markersize=4, alpha=0.6, label="seen")
    left.plot(*truth.T.numpy(), color="black", linewidth=1, label="true")
    left.plot(*found.T.numpy(), "--", color="tab:orange", linewidth=2, label="learned")
    left.legend(loc="upper right", fontsize=9)
    left.set(title="From one place, all the way", xlim=(-2.3, 2.3), ylim=(-2.3, 2.3), aspect="equal")
    ticks = kiln.linspace(-2.1, 2.1, 15)
    y, x = kiln.meshgrid(ticks, ticks, indexing="ij")
    velocity = field(kiln.stack([x, y], dim=-1))
    u, v = velocity.unbind(-1)
    right.quiver(x.numpy(), y.numpy(), u.numpy(), v.numpy(), color="tab:blue", pivot="mid", width=0.005)
    right.set(title="The learned field", aspect="equal")
    figure.savefig(path, dpi=72)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description="Learn the law of motion behind a curve.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the picture goes")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    kiln.manual_seed(args.seed)
    dt = TIME / PLACES
    truth = spiral()
    seen = truth + NOISE * kiln.randn_like(truth)
    field = Field()
    optimizer = optim.Adam(field.parameters(), lr=5e-3)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    mean = 0.0
    for step in range(1, args.steps + 1):
        start = kiln.randint(0, PLACES - SEGMENT, (BATCH,))
        target = kiln.stack([seen[start + i] for i in range(SEGMENT + 1)])  # (SEGMENT + 1, BATCH, 2)
        loss = (solve(field, target[0], dt, SEGMENT) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean += loss.item()
        if step % 250 == 0:
            print(f"step {step}: places are missed by {mean / 250:.4f}, of which {NOISE * 0.8:.4f} is noise")
            mean = 0.0

    with kiln.no_grad():
        found = solve(field, truth[:1], dt, PLACES - 1)[:, 0]
    draw(field, truth, seen, found, args.folder / "neural_ode.png")
    print(f"result: distance {(found - truth).norm(dim=1).mean():.4f}")


if __name__ == "__main__":
    main()
