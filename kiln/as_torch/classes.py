"""Where classes say they are: `torch.nn.Linear.__module__` is "torch.nn.modules.linear", as in PyTorch.

    type(layer).__module__.startswith("torch.nn")      libraries tell PyTorch's layers from a program's so
    <class 'torch.optim.adam.Adam'>                    what programs print

Each class of a public module says the path at which PyTorch has it, and is found there. It is told as soon as
the imports of kiln that bring it are over, so nothing is imported for it. Pickles of objects name classes as
kiln does (`kiln.late.ByName`): processes with and without PyTorch's name read one another's. A class that is
itself pickled is named as PyTorch has it.
"""

from __future__ import annotations

import copyreg
import sys
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.as_torch.paths import PATHS
from kiln.late import SHOWN, ByName, call, named, new

# PyTorch's files, and the classes of kiln's that it has there
_NN = {
    "activations": {"activation": "*"},
    "adaptive": {"adaptive": "*"},
    "containers": {"container": "*"},
    "convolutions": {"conv": "*"},
    "dropouts": {"dropout": "*"},
    "embeddings": {"sparse": "*"},
    "layers": {"flatten": "Flatten", "linear": "*"},
    "lazy": {
        "batchnorm": "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d",
        "conv": "LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d "
        "LazyConvTranspose3d",
        "instancenorm": "LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d",
        "linear": "LazyLinear",
        "lazy": "*",
    },
    "linear_losses": {"loss": "*"},
    "losses": {"loss": "*"},
    "module": {"module": "Module"},
    "multihead": {"activation": "*"},
    "normalisations": {
        "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d _BatchNorm _NormBase",
        "instancenorm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d _InstanceNorm",
        "normalization": "*",
    },
    "padding": {
        "channelshuffle": "ChannelShuffle",
        "flatten": "Unflatten",
        "pixelshuffle": "PixelShuffle PixelUnshuffle",
        "padding": "*",
    },
    "parameter_containers": {"container": "*"},
    "pooling": {"pooling": "*"},
    "recurrent": {"rnn": "*"},
    "sampling": {"fold": "Fold Unfold", "upsampling": "*"},
    "similarity": {"loss": "TripletMarginWithDistanceLoss", "distance": "*"},
    "synchronised_norms": {"batchnorm": "*"},
    "transformers": {"transformer": "*"},
}
_DISTRIBUTIONS = {
    "categories": {
        "categorical": "Categorical",
        "multinomial": "Multinomial",
        "one_hot_categorical": "OneHotCategorical OneHotCategoricalStraightThrough",
    },
    "combined": {
        "independent": "Independent",
        "mixture_same_family": "MixtureSameFamily",
        "transformed_distribution": "TransformedDistribution",
    },
    "counts": {
        "bernoulli": "Bernoulli",
        "binomial": "Binomial",
        "geometric": "Geometric",
        "negative_binomial": "NegativeBinomial",
        "poisson": "Poisson",
    },
    "distribution": {"exp_family": "ExponentialFamily", "distribution": "*"},
    "half_line": {
        "chi2": "Chi2",
        "exponential": "Exponential",
        "fishersnedecor": "FisherSnedecor",
        "gamma": "Gamma",
        "generalized_pareto": "GeneralizedPareto",
    },
    "matrices": {"lkj_cholesky": "LKJCholesky", "wishart": "Wishart"},
    "real_line": {
        "cauchy": "Cauchy",
        "gumbel": "Gumbel",
        "laplace": "Laplace",
        "normal": "Normal",
        "studentT": "StudentT",
        "uniform": "Uniform",
        "von_mises": "VonMises",
    },
    "transformed": {
        "half_cauchy": "HalfCauchy",
        "half_normal": "HalfNormal",
        "inverse_gamma": "InverseGamma",
        "kumaraswamy": "Kumaraswamy",
        "log_normal": "LogNormal",
        "logistic_normal": "LogisticNormal",
        "pareto": "Pareto",
        "weibull": "Weibull",
    },
    "unit_interval": {
        "beta": "Beta",
        "continuous_bernoulli": "ContinuousBernoulli",
        "dirichlet": "Dirichlet",
        "relaxed_bernoulli": "RelaxedBernoulli LogitRelaxedBernoulli",
        "relaxed_categorical": "RelaxedOneHotCategorical ExpRelaxedCategorical",
    },
    "vectors": {
        "lowrank_multivariate_normal": "LowRankMultivariateNormal",
        "multivariate_normal": "MultivariateNormal",
    },
    "transforms.base": {"transforms": "*"},
    "transforms.events": {"transforms": "*"},
    "transforms.numbers": {"transforms": "*"},
}
_REST = {
    "autograd.node": {"autograd.graph": "Node"},
    "autograd.profiler_events": {"autograd.profiler_util": "EventList FunctionEvent"},
    "cuda.classes": {
        "": "AcceleratorError OutOfMemoryError",
        "cuda": "CudaError StreamContext device device_of",
        "cuda.graphs": "CUDAGraph",
        "cuda.memory": "MemPool",
        "cuda.streams": "ExternalStream",
    },
    "device": {"": "device"},
    "futures": {"futures": "Future"},
    "layout": {"": "layout memory_format"},
    "autograd.handles": {"utils.hooks": "RemovableHandle"},
    "nn.parallel.on_one_device": {
        "nn.parallel.data_parallel": "DataParallel",
        "nn.parallel.distributed": "DistributedDataParallel",
    },
    "ops.linalg.outside": {"_C": "_LinAlgError"},
    "ops.random.generator": {"_C": "Generator"},
    "ops.views.storage": {"storage": "TypedStorage UntypedStorage"},
    "optim._adafactor": {"optim": "Adafactor"},
    "optim._muon": {"optim": "Muon"},
    **{
        f"optim.lr_scheduler.{file}": {"optim.lr_scheduler": "*"}
        for file in ("base", "combined", "cosine", "cycles", "factors", "plateau")
    },
    "serialization.safe": {"serialization": "safe_globals"},
    "tracing.modules": {"jit": "TopLevelTracedModule TracedModule"},
    "tracing.scripts": {"jit": "ScriptFunction ScriptModule"},
    "utils.selective": {"utils.checkpoint": "*"},
}
_PLACES = {
    **{
        f"kiln.nn.{own}": {f"torch.nn.modules.{file}": names for file, names in files.items()}
        for own, files in _NN.items()
    },
    **{
        f"kiln.distributions.{own}": {f"torch.distributions.{file}": names for file, names in files.items()}
        for own, files in _DISTRIBUTIONS.items()
    },
    **{
        f"kiln.{own}": {f"torch.{file}".rstrip("."): names for file, names in files.items()}
        for own, files in _REST.items()
    },
}
# of whose files PyTorch has those of the same name
_SAME = "amp autograd cpu distributions futures fx nn optim profiler utils".split()
_waiting: list[ModuleType] = []
_running = 0
_places: set[str] = set()  # PyTorch's modules that classes name, and who looks would not find yet


def begin() -> None:
    """A module of kiln is about to run; what it defines is told by the outermost one."""
    global _running
    _running += 1


def end(module: ModuleType) -> None:
    """It has run. Packages name what their files define, by where it is: they are all done first."""
    global _running
    _running -= 1
    _waiting.append(module)
    if _running <= 0:
        while _waiting:
            show(_waiting.pop())
        stand()


def show_core() -> None:
    """Tensor, dtype and Size are the core's."""
    for kind in (_core.Tensor, _core.dtype, _core.Size):
        _say(kind, "torch")


def show(module: ModuleType) -> None:
    """The public classes that a module defines say PyTorch's path."""
    for name, kind in tuple(vars(module).items()):
        if not isinstance(kind, type) or kind.__qualname__ != name:
            continue
        place = ""
        if kind.__module__ in ("kiln", "kiln.cuda"):  # FloatTensor and its like say so wherever they are made
            place = kind.__module__.replace("kiln", "torch", 1)
        elif kind.__module__ == module.__name__:
            place = _place(module.__name__, name)
        if place:
            _places.add(place)
            _say(kind, place)


def _place(module: str, name: str) -> str:
    """PyTorch's module for a class; nothing where it has none."""
    named = _PLACES.get(module)
    if named is not None:
        for place, names in named.items():
            if names == "*" or name in names.split():
                return place
        return ""
    parts = module.split(".")[1:]
    if not parts or parts[0] not in _SAME or name[0] == "_" or any(part[0] == "_" for part in parts):
        return ""
    return ".".join(["torch", *parts])


def stand() -> None:
    """Modules that classes name stand in sys.modules, where there is who looks without importing."""
    for place in tuple(_places):
        own = sys.modules.get(place.replace("torch", "kiln", 1))
        below = f"{place}.".removeprefix("torch.")
        if own is None or any(path.startswith(below) for path in PATHS):
            continue  # its import brings more
        sys.modules.setdefault(place, own)
        _places.discard(place)


def _say(kind: type, place: str) -> None:
    if kind in SHOWN:
        return
    SHOWN[kind] = (kind.__module__, kind.__qualname__)
    kind.__module__ = place
    owner = next(
        home for home in kind.__mro__ if "__reduce_ex__" in vars(home)
    )  # asking would import a tensor's
    if owner is object:
        copyreg.pickle(kind, _reduced)


def _reduced(thing: Any) -> Any:
    """How an object is pickled, with its class as kiln names it."""
    made = thing.__reduce_ex__(4)
    if isinstance(made, str):
        return named, (SHOWN[type(thing)][0], made)
    make, args, *rest = made
    if make is copyreg.__newobj__ and args[0] in SHOWN:  # type: ignore[attr-defined]
        return new, (ByName(args[0]), *args[1:]), *rest
    if make in SHOWN:
        return call, (ByName(make), *args), *rest
    return made
