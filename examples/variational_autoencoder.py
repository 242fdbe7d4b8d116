"""Learn to draw handwritten digits: a variational autoencoder with a plane of two latent variables.

    python examples/variational_autoencoder.py [--epochs 120] [--seed 1] [--folder .]

Takes the 1 797 digits of 8 x 8 pixels that kiln ships and keeps 297 of them apart. An encoder places each
image on a plane, with an uncertainty; a decoder draws an image for any place. Trained together on the
evidence lower bound (Kingma and Welling, 2013, https://arxiv.org/abs/1312.6114) they need 24 nats for an
image they never saw, where independent pixels would need 27. Writes variational_autoencoder.png: where digits
of each kind lie on the plane, and what the decoder draws across it.
"""

import argparse
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import nn, optim
from kiln.datasets import load_digits
from kiln.utils.data import DataLoader, TensorDataset

AT_MOST = 25.0  # the result: nats per held-out image, a bound on its negative log-likelihood
SHOWN = 12  # images in a row and in a column of the picture


class VAE(nn.Module):
    """Images (N, 64) -> logits of their pixels (N, 64), mean and log-variance of their places (N, 2)."""

    def __init__(self, pixels=64, hidden=256, latent=2):
        super().__init__()
        self.encoder = self.three_layers(pixels, hidden, 2 * latent)
        self.decoder = self.three_layers(latent, hidden, pixels)

    @staticmethod
    def three_layers(inputs, hidden, outputs):
        first, second, last = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + kiln.exp(0.5 * log_variance) * kiln.randn_like(mean)  # the reparametrization trick
        return self.decoder(z), mean, log_variance


def negative_elbo(x, logits, mean, log_variance):
    """Nats for a batch: of its pixels, given the places; of the places, beside a standard normal."""
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * kiln.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return reconstruction + divergence


def train(model, loader, optimizer):
    """One epoch; nats per image."""
    model.train()
    total = 0.0
    for x, _ in loader:
        loss = negative_elbo(x, *model(x))
        optimizer.zero_grad()
        (loss / len(x)).backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader.dataset)


@kiln.no_grad()
def evaluate(model, images, draws=20):
    """Nats per image, the mean over some draws of each place."""
    model.eval()
    x = images.repeat(draws, 1)
    return negative_elbo(x, *model(x)).item() / len(x)


@kiln.no_grad()
def draw(model, images, labels, path):
    """Left, the held-out images as points of the plane; right, what the decoder draws at its quantiles."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    places = model.encoder(images)[:, :2]
    # places at equal shares of the distribution that the latent variables have before an image is seen
    shares = kiln.linspace(0.03, 0.97, SHOWN)
    quantiles = kiln.distributions.Normal(0.0, 1.0).icdf(shares)
    y, x = kiln.meshgrid(quantiles.flip(0), quantiles, indexing="ij")
    drawn = kiln.sigmoid(model.decoder(kiln.stack([x.flatten(), y.flatten()], dim=1)))
    tiles = F.pad(drawn.reshape(SHOWN, SHOWN, 8, 8), (1, 1, 1, 1))
    sheet = tiles.permute(0, 2, 1, 3).reshape(SHOWN * 10, SHOWN * 10)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    for digit in range(10):
        x, y = places[labels == digit].unbind(1)
        left.scatter(x.numpy(), y.numpy(), color=f"C{digit}", s=25, marker=f"${digit}$", linewidths=0.5)
    left.set(title="Held-out images on the latent plane", xlabel="$z_1$", ylabel="$z_2$", aspect="equal")
    right.imshow(sheet.numpy(), cmap="gray_r", interpolation="nearest")
    right.set(title="What the decoder draws across the plane", xticks=[], yticks=[])
    figure.savefig(path, dpi=80)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description="Learn to draw handwritten digits.")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the picture goes")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    kiln.manual_seed(args.seed)
    images, labels = load_digits()
    images = images.reshape(-1, 64).float() / 16
    order = kiln.randperm(len(images))
    images, labels = images[order], labels[order]
    train_set, held_out = TensorDataset(images[:1500], labels[:1500]), images[1500:]
    loader = DataLoader(train_set, batch_size=100, shuffle=True)

    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        nats = train(model, loader, optimizer)
        if epoch % 20 == 0 or epoch == args.epochs:
            print(f"epoch {epoch:3}: {nats:.2f} nats per image, held out {evaluate(model, held_out):.2f}")

    draw(model, held_out, labels[1500:], args.folder / "variational_autoencoder.png")
    print(f"result: nats {evaluate(model, held_out):.2f}")


if __name__ == "__main__":
    main()
