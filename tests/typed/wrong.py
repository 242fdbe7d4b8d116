"""Mistakes as users make them, each on a line that says so: type checkers find every one, and no more."""

from __future__ import annotations

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn, optim
from kiln.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bais=False)  # mistake: an argument misspelled
        self.second = nn.Linear(16, "2")  # mistake: a text for a size
        self.norm = nn.LayrNorm(16)  # mistake: a layer misspelled

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x), inplce=True)  # mistake: an argument misspelled
        x = F.dropot(x, 0.5)  # mistake: a function misspelled
        return self.second(x, x)  # mistake: too many arguments


def tensors() -> None:
    x = kiln.zeros(2, 3)
    kiln.sumx(x)  # mistake: a function misspelled
    x.summ()  # mistake: a method misspelled
    x.sum("rows")  # mistake: a text for a dim
    x.sum(dims=1)  # mistake: another name of an argument
    x.shap  # mistake: a property misspelled
    x.shape.ndims  # mistake: a property that sizes do not have
    kiln.zeros(2, 3, dtype=x)  # mistake: a tensor for a dtype
    kiln.zeros("2")  # mistake: a text for a size
    kiln.ones(2.5)  # mistake: a float for a size
    kiln.softmax(x)  # mistake: an argument left out
    kiln.exp(x, x)  # mistake: too many arguments
    kiln.cat(x, 0, x)  # mistake: tensors that are no list
    kiln.arange(0, 1, step="a")  # mistake: a text for a number
    kiln.manual_seed("seed")  # mistake: a text for a seed
    x.max(0).value  # mistake: a field misspelled
    x.max().values  # mistake: a field of a single tensor
    kiln.sort(x).vals  # mistake: a field misspelled
    kiln.linalg.svd(x).V  # mistake: a field that another function's result has
    kiln.linalg.eigh(x, uplo="L")  # mistake: an argument misspelled
    x + "1"  # mistake: a text added
    "1" - x  # mistake: subtracted from a text
    x @ 2  # mistake: a number in a product of matrices
    x < "a"  # mistake: compared with a text
    x["a"]  # mistake: a text as an index
    x.view(2, "3")  # mistake: a text among sizes
    x.permute(1, 0, dim=0)  # mistake: an argument that is not there
    x.reshape(3, 2).relu_().tranpose(0, 1)  # mistake: a method of a result misspelled
    x.to(kiln.float23)  # mistake: a dtype misspelled
    x.clamp(minimum=0)  # mistake: another name of an argument
    x.requires_grad = "yes"  # mistake: a text for a flag
    x.shape = (3, 2)  # mistake: a property that is not set
    x.backward(x, "keep")  # mistake: a text for a flag
    text: str = x.argmax()  # mistake: a tensor where a text was wanted
    rows: list[int] = x.mean(0)  # mistake: a tensor where a list was wanted
    found: Tensor = x.sort()  # mistake: two results where one was wanted
    a, b, c = x.median(0)  # mistake: three names for two results
    number: int = kiln.tensor([1])  # mistake: a tensor where a number was wanted
    x += None  # mistake: None added


@kiln.compile
def doubled(x: Tensor) -> Tensor:
    return x * 2


def training() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU)  # mistake: a class for a layer
    optimizer = optim.SGD(model.parameters(), learning_rate=0.1)  # mistake: another name of an argument
    optimizer.zero_gard()  # mistake: a method misspelled
    optim.Adam(model.parameters(), lr="fast")  # mistake: a text for a rate
    optim.lr_scheduler.StepLR(model, 3)  # mistake: a model for an optimizer
    data = TensorDataset(kiln.ones(4), [1, 2, 3, 4])  # mistake: a list for a tensor
    loader = DataLoader(data, batch_size="4")  # mistake: a text for a size
    loader.shuffle()  # mistake: a method that is not there
    nn.CrossEntropyLoss()(model(kiln.ones(1, 2)))  # mistake: a target left out
    loss = nn.MSELoss()(model(kiln.ones(1, 2)), kiln.zeros(1, 2))
    loss.item().detach()  # mistake: a method of tensors on a number
    F.cross_entropy(model, kiln.ones(1))  # mistake: a model for its result
    F.max_pool2d(kiln.ones(1, 1, 4, 4), 2).shape.sum()  # mistake: a method that sizes do not have
    out, state = nn.LSTM(2, 2)(kiln.ones(3, 2))
    state.sum()  # mistake: a method of tensors on a pair
    nn.init.zeros_(0.5)  # mistake: a number for a tensor
    nn.utils.clip_grad_norm(model.parameters(), 1.0, norm="inf")  # mistake: another name of an argument
    doubled(kiln.ones(2), 3)  # mistake: too many arguments
    doubled(2).item()  # mistake: a number for a tensor
    kiln.save(out)  # mistake: an argument left out
    with kiln.no_gard():  # mistake: a context misspelled
        kiln.set_num_threads("2")  # mistake: a text for a number
    kiln.Generator().manual_sed(0)  # mistake: a method misspelled
    kiln.autograd.grad(loss, out, retain=True)  # mistake: another name of an argument
    kiln.vmap(kiln.ones(2))  # mistake: a tensor for a function
    kiln.device(0.5)  # mistake: a number for a device
