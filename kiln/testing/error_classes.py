"""What the scan of errors constructs and calls besides the table: layers, optimizers, distributions, loaders.

    path below the library -> right arguments of its constructor, or of the function

Each argument, and each keyword, is replaced in turn by what does not belong there (error_cases.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import kiln


class Made(NamedTuple):
    """An argument that each library constructs itself: what stands at a path, called."""

    path: str
    make: Callable[[], tuple[Any, ...]]


# ---- layers, and what they are called with ----

_x, _i = (2, 3), ("long", 2)
_PLAIN = """ReLU ReLU6 SELU SiLU GELU ELU CELU Sigmoid Tanh Softsign Mish Hardswish Hardsigmoid Hardtanh
    Hardshrink Softshrink Tanhshrink LogSigmoid Softplus LeakyReLU PReLU RReLU Identity Dropout AlphaDropout
    Flatten FeatureAlphaDropout"""
_PAIRS = """L1Loss MSELoss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss KLDivLoss SoftMarginLoss
    PoissonNLLLoss HingeEmbeddingLoss MultiLabelSoftMarginLoss"""
# the layer -> arguments of its constructor; what it is called with: tensors by their shapes
LAYERS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "Linear": ((3, 4), ((2, 3),)),
    "Bilinear": ((3, 4, 2), ((2, 3), (2, 4))),
    **{f"Conv{n}d": ((2, 4, 3), ((1, 2, *(5,) * n),)) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": ((2, 4, 3), ((1, 2, *(5,) * n),)) for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": ((2,), ((3, 2, *(4,) * n),)) for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": ((2,), ((3, 2, *(4,) * n),)) for n in (1, 2, 3)},
    **{f"{kind}Pool{n}d": ((2,), ((1, 2, *(4,) * n),))
       for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax") for n in (1, 2, 3)},
    **{f"LPPool{n}d": ((2, 2), ((1, 2, *(4,) * n),)) for n in (1, 2, 3)},
    **{f"MaxUnpool{n}d": ((2,), ((1, 1, *(2,) * n), ("long", 1, 1, *(2,) * n))) for n in (1, 2, 3)},
    **{f"{kind}Pad{n}d": ((1,), ((1, 2, *(4,) * n),))
       for kind in ("Zero", "Reflection", "Replication", "Circular") for n in (1, 2, 3)},
    **{f"ConstantPad{n}d": ((1, 2.5), ((1, 2, *(4,) * n),)) for n in (1, 2, 3)},
    "LayerNorm": ((3,), (_x,)),
    "RMSNorm": ((3,), (_x,)),
    "GroupNorm": ((2, 4), ((2, 4, 3),)),
    "LocalResponseNorm": ((2,), ((1, 4, 3),)),
    "Embedding": ((5, 3), (_i,)),
    "EmbeddingBag": ((5, 3), (("long", 2, 2),)),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), ((3, 4), ((2, 5, 3),))),
    **dict.fromkeys(("RNNCell", "LSTMCell", "GRUCell"), ((3, 4), ((2, 3),))),
    "MultiheadAttention": ((4, 2), ((3, 2, 4),) * 3),
    "TransformerEncoderLayer": ((4, 2, 8), ((3, 2, 4),)),
    "TransformerDecoderLayer": ((4, 2, 8), ((3, 2, 4),) * 2),
    "Transformer": ((4, 2, 1, 1, 8), ((3, 2, 4),) * 2),
    **dict.fromkeys(_PLAIN.split(), ((), (_x,))),
    **{f"Dropout{n}d": ((0.5,), ((1, 2, *(3,) * n),)) for n in (1, 2, 3)},
    **dict.fromkeys(("Softmax", "LogSoftmax", "Softmin"), ((1,), (_x,))),
    "Softmax2d": ((), ((1, 2, 3, 3),)),
    "GLU": ((), ((2, 4),)),
    "Threshold": ((0.1, 20.0), (_x,)),
    "Unflatten": ((1, (3, 1)), (_x,)),
    "Fold": (((4, 4), (2, 2)), ((1, 4, 9),)),
    "Unfold": (((2, 2),), ((1, 2, 4, 4),)),
    "PixelShuffle": ((2,), ((1, 4, 3, 3),)),
    "PixelUnshuffle": ((2,), ((1, 1, 4, 4),)),
    "ChannelShuffle": ((2,), ((1, 4, 3, 3),)),
    "Upsample": ((None, 2), ((1, 2, 4),)),
    "UpsamplingNearest2d": ((None, 2), ((1, 2, 4, 4),)),
    "UpsamplingBilinear2d": ((None, 2), ((1, 2, 4, 4),)),
    "CosineSimilarity": ((), (_x, _x)),
    "PairwiseDistance": ((), (_x, _x)),
    **dict.fromkeys(_PAIRS.split(), ((), (_x, _x))),
    **dict.fromkeys(("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"), ((), (_x, _i))),
    "MultiLabelMarginLoss": ((), (_x, ("long", 2, 3))),
    "GaussianNLLLoss": ((), (_x, _x, _x)),
    "MarginRankingLoss": ((), (_x, _x, _x)),
    "TripletMarginLoss": ((), (_x, _x, _x)),
    "TripletMarginWithDistanceLoss": ((), (_x, _x, _x)),
    "CosineEmbeddingLoss": ((), (_x, _x, (2,))),
    "CTCLoss": ((), ((5, 2, 3), ("long", 2, 2), (("long", 2)), ("long", 2))),
    "AdaptiveLogSoftmaxWithLoss": ((8, 6, [2]), ((2, 8), ("long", 2))),
    **{f"FractionalMaxPool{n}d": ((2, 3), ((1, 2, *(6,) * n),)) for n in (2, 3)},
    "CrossMapLRN2d": ((2,), ((1, 4, 3, 3),)),
    "SyncBatchNorm": ((2,), ((3, 2, 4),)),
    "NLLLoss2d": ((), ((1, 2, 3, 3), ("long", 1, 3, 3))),
    **dict.fromkeys(("LazyLinear", "LazyBatchNorm1d"), ((), ())),
    "LazyConv2d": ((2, 3), ()),
    "ModuleList": (([],), ()),
    "ModuleDict": (({},), ()),
    "ParameterList": (([kiln.ones(2)],), ()),
    "ParameterDict": (({"a": kiln.ones(2)},), ()),
    "Parameter": ((kiln.ones(2),), ()),
    "Buffer": ((kiln.ones(2),), ()),
}  # fmt: skip

_parameter = Made("nn.Parameter", lambda: (kiln.ones(2, 3),))
_linear = Made("nn.Linear", lambda: (2, 3))
_sgd = Made("optim.SGD", lambda: ([_parameter], 0.1))
_STEPPING = "Adadelta Adagrad Adamax ASGD LBFGS NAdam RAdam RMSprop Rprop Adafactor Muon"
OPTIMIZERS: dict[str, tuple[Any, ...]] = {
    "optim.SGD": ([_parameter], 0.1),
    "optim.Adam": ([_parameter], 0.1),
    "optim.AdamW": ([_parameter], 0.1),
    **{f"optim.{name}": ([_parameter], 0.1) for name in _STEPPING.split()},
    "optim.lr_scheduler.StepLR": (_sgd, 2),
    "optim.lr_scheduler.MultiStepLR": (_sgd, [2, 3]),
    "optim.lr_scheduler.ConstantLR": (_sgd, 0.5, 3),
    "optim.lr_scheduler.LinearLR": (_sgd, 0.5, 1.0, 3),
    "optim.lr_scheduler.ExponentialLR": (_sgd, 0.5),
    "optim.lr_scheduler.PolynomialLR": (_sgd, 3, 2.0),
    "optim.lr_scheduler.CosineAnnealingLR": (_sgd, 2),
    "optim.lr_scheduler.CosineAnnealingWarmRestarts": (_sgd, 2),
    "optim.lr_scheduler.ReduceLROnPlateau": (_sgd, "min", 0.5),
    "optim.lr_scheduler.LambdaLR": (_sgd, lambda epoch: 0.5),
    "optim.lr_scheduler.MultiplicativeLR": (_sgd, lambda epoch: 0.5),
    "optim.lr_scheduler.CyclicLR": (_sgd, 0.1, 0.2),
    "optim.lr_scheduler.OneCycleLR": (_sgd, 0.1, 10),
    "optim.swa_utils.SWALR": (_sgd, 0.1),
    "optim.swa_utils.AveragedModel": (_linear,),
}


# ---- distributions ----

_normal = Made("distributions.Normal", lambda: (0.0, 1.0))
_normals = Made("distributions.Normal", lambda: (kiln.zeros(2), kiln.ones(2)))
_categories = Made("distributions.Categorical", lambda: (kiln.ones(2),))
_TWO = """Beta Cauchy FisherSnedecor Gamma Gumbel InverseGamma Kumaraswamy Laplace LogNormal Normal Pareto
    VonMises Weibull"""
_ONE = "Bernoulli Chi2 ContinuousBernoulli Exponential Geometric HalfCauchy HalfNormal Poisson StudentT"
DISTRIBUTIONS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_TWO.split(), (1.0, 2.0)),
    **dict.fromkeys(_ONE.split(), (0.5,)),
    **dict.fromkeys(("Binomial", "NegativeBinomial"), (3, 0.5)),
    **dict.fromkeys(("Categorical", "OneHotCategorical", "Dirichlet"), (kiln.ones(3),)),
    "Uniform": (0.0, 1.0),
    "Independent": (_normals, 1),
    "LKJCholesky": (3, 1.0),
    "LogisticNormal": (kiln.zeros(2), kiln.ones(2)),
    "LowRankMultivariateNormal": (kiln.zeros(2), kiln.ones(2, 1), kiln.ones(2)),
    "MixtureSameFamily": (_categories, _normals),
    "Multinomial": (3, kiln.ones(3)),
    "MultivariateNormal": (kiln.zeros(2), kiln.eye(2)),
    "RelaxedBernoulli": (kiln.tensor(0.5), 0.5),
    "RelaxedOneHotCategorical": (kiln.tensor(0.5), kiln.ones(3)),
    "TransformedDistribution": (_normal, []),
    "Wishart": (kiln.tensor(3.0), kiln.eye(2)),
}


# ---- data ----

DATA: dict[str, tuple[Any, ...]] = {
    "TensorDataset": (kiln.ones(3),),
    "StackDataset": ([1, 2, 3],),
    "ConcatDataset": ([[1], [2, 3]],),
    "ChainDataset": ([[1], [2]],),
    "Subset": ([1, 2, 3], [0, 2]),
    "DataLoader": ([1, 2, 3], 2),
    "RandomSampler": ([1, 2, 3],),
    "SequentialSampler": ([1, 2, 3],),
    "SubsetRandomSampler": ([0, 1],),
    "WeightedRandomSampler": ([1.0, 2.0], 2),
    "BatchSampler": ([0, 1, 2], 2, False),
    "DistributedSampler": ([1, 2, 3], 2, 0),
    "random_split": ([1, 2, 3], [2, 1]),
    "default_collate": ([1, 2],),
    "default_convert": ([1, 2],),
}


# ---- functions and methods ----


def _doubled(x: Any) -> Any:
    return (x * 2).sum()


_PRUNED = "l1_unstructured random_unstructured"
_FUNCTIONAL = "jacobian hessian vjp hvp vhp"
CALLED: dict[str, tuple[Any, ...]] = {
    "nn.utils.clip_grad_norm_": ([_parameter], 1.0),
    "nn.utils.clip_grad_value_": ([_parameter], 1.0),
    "nn.utils.get_total_norm": ([kiln.ones(2)],),
    "nn.utils.parameters_to_vector": ([_parameter],),
    "nn.utils.vector_to_parameters": (kiln.ones(6), [_parameter]),
    "nn.utils.weight_norm": (_linear,),
    "nn.utils.spectral_norm": (_linear,),
    "nn.utils.remove_weight_norm": (_linear,),
    "nn.utils.parametrizations.orthogonal": (_linear,),
    "nn.utils.parametrizations.weight_norm": (_linear,),
    "nn.utils.parametrizations.spectral_norm": (_linear,),
    "nn.utils.rnn.pad_sequence": ([kiln.ones(2), kiln.ones(3)],),
    "nn.utils.rnn.pack_sequence": ([kiln.ones(3), kiln.ones(2)],),
    "nn.utils.rnn.pack_padded_sequence": (kiln.ones(3, 2), [3, 2]),
    "nn.utils.rnn.unpad_sequence": (kiln.ones(3, 2), kiln.tensor([3, 2])),
    **{f"nn.utils.prune.{name}": (_linear, "weight", 0.5) for name in _PRUNED.split()},
    "nn.init.calculate_gain": ("leaky_relu", 0.1),
    **{f"nn.init.{name}_": (kiln.zeros(2, 3),) for name in
       "uniform normal trunc_normal ones zeros eye xavier_uniform xavier_normal kaiming_uniform "
       "kaiming_normal orthogonal".split()},
    "nn.init.sparse_": (kiln.zeros(2, 3), 0.5),
    "nn.init.constant_": (kiln.zeros(2, 3), 1.0),
    "nn.init.dirac_": (kiln.zeros(2, 3, 1),),
    "nn.Module.register_buffer": (_linear, "name", kiln.ones(2)),
    "nn.Module.register_parameter": (_linear, "name", _parameter),
    "nn.Module.add_module": (_linear, "name", _linear),
    "nn.Module.get_submodule": (_linear, ""),
    "nn.Module.get_parameter": (_linear, "weight"),
    "nn.Module.load_state_dict": (_linear, {"weight": kiln.ones(3, 2), "bias": kiln.ones(3)}),
    "nn.Module.requires_grad_": (_linear, True),
    "nn.Module.train": (_linear, True),
    "nn.Module.to": (_linear, "cpu"),
    "optim.Optimizer.add_param_group": (_sgd, {"params": [_parameter]}),
    "optim.Optimizer.load_state_dict": (_sgd, {"state": {}, "param_groups": []}),
    "optim.Optimizer.zero_grad": (_sgd, True),
    "distributions.kl_divergence": (_normal, _normal),
    "distributions.Normal.log_prob": (_normal, kiln.tensor(1.0)),
    "distributions.Normal.sample": (_normal, (2,)),
    "distributions.Normal.expand": (_normal, (2,)),
    "distributions.Categorical.log_prob": (_categories, kiln.tensor(1)),
    **{f"autograd.functional.{name}": (_doubled, kiln.ones(2)) for name in _FUNCTIONAL.split()},
    "func.grad": (_doubled,),
    "func.vjp": (_doubled, kiln.ones(2)),
    "func.jvp": (_doubled, (kiln.ones(2),), (kiln.ones(2),)),
    "jit.freeze": (_linear,),
    "jit.optimize_for_inference": (_linear,),
    "accelerator.current_stream": (),
    "cuda.current_device": (),
    "cuda.Event": (),
    "amp.autocast": ("cpu",),
    "amp.GradScaler": ("cpu",),
}  # fmt: skip

# everything by path: what it is constructed or called with
CLASSES: dict[str, tuple[Any, ...]] = {
    **OPTIMIZERS,
    **{f"distributions.{name}": args for name, args in DISTRIBUTIONS.items()},
    **{f"utils.data.{name}": args for name, args in DATA.items()},
    **CALLED,
}

# What else is public: the functions and classes that these modules define, called with anything. Not those
# that change what runs after them: hooks of every module, modes, defaults.
SPACES = """
    accelerator amp autograd autograd.forward_ad autograd.function autograd.graph autograd.profiler
    backends.cuda backends.mha compiler cpu cuda cuda.amp cuda.nvtx distributions
    distributions.constraints distributions.constraint_registry distributions.kl distributions.utils
    export export.graph_signature func futures fx fx.graph fx.immutable_collections fx.interpreter fx.node
    fx.passes.utils.matcher_utils fx.proxy fx.subgraph_rewriter jit library masked mps mtia nn
    nn.attention nn.grad nn.modules.utils nn.parallel nn.parallel.scatter_gather nn.utils
    nn.utils.clip_grad nn.utils.fusion nn.utils.memory_format nn.utils.parametrize nn.utils.prune
    nn.utils.rnn nn.utils.stateless optim optim.lr_scheduler optim.swa_utils overrides profiler
    quasirandom random signal.windows storage testing types utils.checkpoint utils.data utils.dlpack xpu
"""
ALONE = """
    Generator Size Tensor autograd.backward autograd.grad device finfo iinfo serialization.LoadEndianness
    serialization.default_restore_location serialization.get_default_load_endianness
    serialization.get_unsafe_globals_in_checkpoint serialization.location_tag
"""
CHANGES = (
    r".*\.(register_module_\w+|set_(?!rng_state|state)\w+|seed|seed_all|enter_dual_level|stats|save|load)$"
)
