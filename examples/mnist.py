"""Learn to read handwritten digits with a convolutional network: MNIST.

    python examples/mnist.py [--data data/mnist] [--epochs 3] [--seed 1] [--folder .]

Takes the 10 000 test images of MNIST (28 x 28 pixels), learns from the first 8 000 of them and is tested on
the last 2 000, which it never saw: after 3 epochs it reads 98 % of them. Writes mnist.png, the digits that
were hardest to read, and mnist.pt, the weights.

The folder given by --data holds t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, packed (.gz) or not, as
torchvision.datasets.MNIST leaves them in MNIST/raw. Nothing is downloaded.
"""

import argparse
import gzip
import sys
import time
from pathlib import Path

import numpy as np

import kiln
import kiln.nn.functional as F
from kiln import nn, optim
from kiln.optim.lr_scheduler import StepLR
from kiln.utils.data import DataLoader, TensorDataset

AT_LEAST = 0.97  # the result: the share of held-out digits that are read correctly


class Net(nn.Module):
    """(N, 1, 28, 28) images -> (N, 10) log-probabilities."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 5 * 5, 128)
        self.fc2 = nn.Linear(128, 10)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # (N, 32, 13, 13)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # (N, 64, 5, 5)
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def read_idx(folder, name):
    """The array in an IDX file: bytes 0, 0, 8 and how many dims, four bytes for each size, the elements."""
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.exists():
            with opened(path, "rb") as file:
                content = file.read()
            sizes = np.frombuffer(content, ">i4", count=content[3], offset=4)
            return np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
    sys.exit(f"{name}.gz is not in {folder}/: put MNIST's four-letter t10k files there, or say --data FOLDER")


def load(folder):
    """8 000 images to learn from and 2 000 to be tested on, with mean 0 and variance 1, and their labels."""
    images = kiln.from_numpy(read_idx(folder, "t10k-images-idx3-ubyte").copy())
    labels = kiln.from_numpy(read_idx(folder, "t10k-labels-idx1-ubyte").copy()).long()
    images = (images.unsqueeze(1).float() / 255 - 0.1307) / 0.3081
    return TensorDataset(images[:8000], labels[:8000]), TensorDataset(images[8000:], labels[8000:])


def train(model, loader, optimizer, epoch):
    model.train()
    for batch, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        if batch % 25 == 0:
            seen = batch * loader.batch_size
            print(f"epoch {epoch}  [{seen:4}/{len(loader.dataset)}]  loss {loss.item():.4f}")


def test(model, loader):
    """The loss and the share of correct answers; all log-probabilities."""
    model.eval()
    with kiln.no_grad():
        answers = kiln.cat([model(images) for images, _ in loader])
    labels = loader.dataset.tensors[1]
    accuracy = (answers.argmax(1) == labels).float().mean().item()
    return F.nll_loss(answers, labels).item(), accuracy, answers


def draw(images, labels, answers, path):
    """The sixteen images whose label the network found least likely, with its answer."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    worst = answers.gather(1, labels[:, None]).squeeze(1).argsort()[:16]
    figure, axes = plt.subplots(2, 8, figsize=(8, 2.8), layout="constrained")
    for ax, i in zip(axes.flat, worst.tolist()):
        guess, label = answers[i].argmax().item(), labels[i].item()
        ax.imshow(images[i, 0].numpy(), cmap="gray_r")
        ax.set_title(f"{label} read as {guess}", fontsize=9, color="tab:red" if guess != label else "black")
        ax.axis("off")
    figure.suptitle("The digits that were hardest to read (red: misread)", fontsize=11)
    figure.savefig(path, dpi=100)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits: MNIST.")
    parser.add_argument("--data", type=Path, default=Path("data/mnist"), help="folder of MNIST's t10k files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where picture and weights go")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    kiln.manual_seed(args.seed)
    train_set, test_set = load(args.data)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=500)

    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        train(model, train_loader, optimizer, epoch)
        scheduler.step()
        loss, accuracy, answers = test(model, test_loader)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: held-out loss {loss:.4f}, accuracy {100 * accuracy:.2f} % ({seconds:.1f} s)")

    kiln.save(model.state_dict(), args.folder / "mnist.pt")
    draw(*test_set.tensors, answers, args.folder / "mnist.png")
    print(f"result: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
