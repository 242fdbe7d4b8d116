"""Modules, layers, losses and their helpers, under PyTorch's names; see README.md.

A name imported as itself is public.
"""

from kiln.nn import functional as functional
from kiln.nn import init as init
from kiln.nn import utils as utils
from kiln.nn.activations import (
    CELU as CELU,
)
from kiln.nn.activations import (
    ELU as ELU,
)
from kiln.nn.activations import (
    GELU as GELU,
)
from kiln.nn.activations import (
    GLU as GLU,
)
from kiln.nn.activations import (
    SELU as SELU,
)
from kiln.nn.activations import (
    Hardshrink as Hardshrink,
)
from kiln.nn.activations import (
    Hardsigmoid as Hardsigmoid,
)
from kiln.nn.activations import (
    Hardswish as Hardswish,
)
from kiln.nn.activations import (
    Hardtanh as Hardtanh,
)
from kiln.nn.activations import (
    LeakyReLU as LeakyReLU,
)
from kiln.nn.activations import (
    LogSigmoid as LogSigmoid,
)
from kiln.nn.activations import (
    LogSoftmax as LogSoftmax,
)
from kiln.nn.activations import (
    Mish as Mish,
)
from kiln.nn.activations import (
    PReLU as PReLU,
)
from kiln.nn.activations import (
    ReLU as ReLU,
)
from kiln.nn.activations import (
    ReLU6 as ReLU6,
)
from kiln.nn.activations import (
    RReLU as RReLU,
)
from kiln.nn.activations import (
    Sigmoid as Sigmoid,
)
from kiln.nn.activations import (
    SiLU as SiLU,
)
from kiln.nn.activations import (
    Softmax as Softmax,
)
from kiln.nn.activations import (
    Softmax2d as Softmax2d,
)
from kiln.nn.activations import (
    Softmin as Softmin,
)
from kiln.nn.activations import (
    Softplus as Softplus,
)
from kiln.nn.activations import (
    Softshrink as Softshrink,
)
from kiln.nn.activations import (
    Softsign as Softsign,
)
from kiln.nn.activations import (
    Tanh as Tanh,
)
from kiln.nn.activations import (
    Tanhshrink as Tanhshrink,
)
from kiln.nn.activations import (
    Threshold as Threshold,
)
from kiln.nn.containers import (
    ModuleDict as ModuleDict,
)
from kiln.nn.containers import (
    ModuleList as ModuleList,
)
from kiln.nn.containers import (
    Sequential as Sequential,
)
from kiln.nn.layers import (
    Dropout as Dropout,
)
from kiln.nn.layers import (
    Embedding as Embedding,
)
from kiln.nn.layers import (
    Flatten as Flatten,
)
from kiln.nn.layers import (
    Identity as Identity,
)
from kiln.nn.layers import (
    LayerNorm as LayerNorm,
)
from kiln.nn.layers import (
    Linear as Linear,
)
from kiln.nn.losses import (
    BCELoss as BCELoss,
)
from kiln.nn.losses import (
    BCEWithLogitsLoss as BCEWithLogitsLoss,
)
from kiln.nn.losses import (
    CosineEmbeddingLoss as CosineEmbeddingLoss,
)
from kiln.nn.losses import (
    CrossEntropyLoss as CrossEntropyLoss,
)
from kiln.nn.losses import (
    GaussianNLLLoss as GaussianNLLLoss,
)
from kiln.nn.losses import (
    HingeEmbeddingLoss as HingeEmbeddingLoss,
)
from kiln.nn.losses import (
    HuberLoss as HuberLoss,
)
from kiln.nn.losses import (
    KLDivLoss as KLDivLoss,
)
from kiln.nn.losses import (
    L1Loss as L1Loss,
)
from kiln.nn.losses import (
    MarginRankingLoss as MarginRankingLoss,
)
from kiln.nn.losses import (
    MSELoss as MSELoss,
)
from kiln.nn.losses import (
    MultiLabelMarginLoss as MultiLabelMarginLoss,
)
from kiln.nn.losses import (
    MultiLabelSoftMarginLoss as MultiLabelSoftMarginLoss,
)
from kiln.nn.losses import (
    MultiMarginLoss as MultiMarginLoss,
)
from kiln.nn.losses import (
    NLLLoss as NLLLoss,
)
from kiln.nn.losses import (
    PoissonNLLLoss as PoissonNLLLoss,
)
from kiln.nn.losses import (
    SmoothL1Loss as SmoothL1Loss,
)
from kiln.nn.losses import (
    SoftMarginLoss as SoftMarginLoss,
)
from kiln.nn.losses import (
    TripletMarginLoss as TripletMarginLoss,
)
from kiln.nn.module import (
    Module as Module,
)
from kiln.nn.normalisations import (
    GroupNorm as GroupNorm,
)
from kiln.nn.normalisations import (
    InstanceNorm1d as InstanceNorm1d,
)
from kiln.nn.normalisations import (
    InstanceNorm2d as InstanceNorm2d,
)
from kiln.nn.normalisations import (
    InstanceNorm3d as InstanceNorm3d,
)
from kiln.nn.normalisations import (
    LocalResponseNorm as LocalResponseNorm,
)
from kiln.nn.normalisations import (
    RMSNorm as RMSNorm,
)
from kiln.nn.padding import (
    ChannelShuffle as ChannelShuffle,
)
from kiln.nn.padding import (
    CircularPad1d as CircularPad1d,
)
from kiln.nn.padding import (
    CircularPad2d as CircularPad2d,
)
from kiln.nn.padding import (
    CircularPad3d as CircularPad3d,
)
from kiln.nn.padding import (
    ConstantPad1d as ConstantPad1d,
)
from kiln.nn.padding import (
    ConstantPad2d as ConstantPad2d,
)
from kiln.nn.padding import (
    ConstantPad3d as ConstantPad3d,
)
from kiln.nn.padding import (
    PixelShuffle as PixelShuffle,
)
from kiln.nn.padding import (
    PixelUnshuffle as PixelUnshuffle,
)
from kiln.nn.padding import (
    ReflectionPad1d as ReflectionPad1d,
)
from kiln.nn.padding import (
    ReflectionPad2d as ReflectionPad2d,
)
from kiln.nn.padding import (
    ReflectionPad3d as ReflectionPad3d,
)
from kiln.nn.padding import (
    ReplicationPad1d as ReplicationPad1d,
)
from kiln.nn.padding import (
    ReplicationPad2d as ReplicationPad2d,
)
from kiln.nn.padding import (
    ReplicationPad3d as ReplicationPad3d,
)
from kiln.nn.padding import (
    Unflatten as Unflatten,
)
from kiln.nn.padding import (
    ZeroPad1d as ZeroPad1d,
)
from kiln.nn.padding import (
    ZeroPad2d as ZeroPad2d,
)
from kiln.nn.padding import (
    ZeroPad3d as ZeroPad3d,
)
from kiln.nn.parameter import (
    Parameter as Parameter,
)
