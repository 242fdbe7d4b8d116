"""Every name of `kiln.nn`. A name imported as itself is public."""
# ruff: isort: skip_file

from kiln.nn import attention as attention
from kiln.nn import functional as functional
from kiln.nn import init as init
from kiln.nn import modules as modules
from kiln.nn import utils as utils
from kiln.nn import common_types as common_types
from kiln.nn import grad as grad
from kiln.nn import parallel as parallel
from kiln.nn.activations import (
    CELU as CELU,
    ELU as ELU,
    GELU as GELU,
    GLU as GLU,
    Hardshrink as Hardshrink,
    Hardsigmoid as Hardsigmoid,
    Hardswish as Hardswish,
    Hardtanh as Hardtanh,
    LeakyReLU as LeakyReLU,
    LogSigmoid as LogSigmoid,
    LogSoftmax as LogSoftmax,
    Mish as Mish,
    PReLU as PReLU,
    RReLU as RReLU,
    ReLU as ReLU,
    ReLU6 as ReLU6,
    SELU as SELU,
    SiLU as SiLU,
    Sigmoid as Sigmoid,
    Softmax as Softmax,
    Softmax2d as Softmax2d,
    Softmin as Softmin,
    Softplus as Softplus,
    Softshrink as Softshrink,
    Softsign as Softsign,
    Tanh as Tanh,
    Tanhshrink as Tanhshrink,
    Threshold as Threshold,
)
from kiln.nn.adaptive import (
    AdaptiveLogSoftmaxWithLoss as AdaptiveLogSoftmaxWithLoss,
)
from kiln.nn.containers import (
    Container as Container,
    ModuleDict as ModuleDict,
    ModuleList as ModuleList,
    Sequential as Sequential,
)
from kiln.nn.convolutions import (
    Conv1d as Conv1d,
    Conv2d as Conv2d,
    Conv3d as Conv3d,
    ConvTranspose1d as ConvTranspose1d,
    ConvTranspose2d as ConvTranspose2d,
    ConvTranspose3d as ConvTranspose3d,
)
from kiln.nn.dropouts import (
    AlphaDropout as AlphaDropout,
    Dropout as Dropout,
    Dropout1d as Dropout1d,
    Dropout2d as Dropout2d,
    Dropout3d as Dropout3d,
    FeatureAlphaDropout as FeatureAlphaDropout,
)
from kiln.nn.embeddings import (
    Embedding as Embedding,
    EmbeddingBag as EmbeddingBag,
)
from kiln.nn.layers import (
    Bilinear as Bilinear,
    Flatten as Flatten,
    Identity as Identity,
    Linear as Linear,
)
from kiln.nn.lazy import (
    LazyBatchNorm1d as LazyBatchNorm1d,
    LazyBatchNorm2d as LazyBatchNorm2d,
    LazyBatchNorm3d as LazyBatchNorm3d,
    LazyConv1d as LazyConv1d,
    LazyConv2d as LazyConv2d,
    LazyConv3d as LazyConv3d,
    LazyConvTranspose1d as LazyConvTranspose1d,
    LazyConvTranspose2d as LazyConvTranspose2d,
    LazyConvTranspose3d as LazyConvTranspose3d,
    LazyInstanceNorm1d as LazyInstanceNorm1d,
    LazyInstanceNorm2d as LazyInstanceNorm2d,
    LazyInstanceNorm3d as LazyInstanceNorm3d,
    LazyLinear as LazyLinear,
)
from kiln.nn.linear_cross_entropy import (
    LinearCrossEntropyOptions as LinearCrossEntropyOptions,
)
from kiln.nn.linear_losses import (
    LinearCrossEntropyLoss as LinearCrossEntropyLoss,
)
from kiln.nn.losses import (
    BCELoss as BCELoss,
    BCEWithLogitsLoss as BCEWithLogitsLoss,
    CTCLoss as CTCLoss,
    CosineEmbeddingLoss as CosineEmbeddingLoss,
    CrossEntropyLoss as CrossEntropyLoss,
    GaussianNLLLoss as GaussianNLLLoss,
    HingeEmbeddingLoss as HingeEmbeddingLoss,
    HuberLoss as HuberLoss,
    KLDivLoss as KLDivLoss,
    L1Loss as L1Loss,
    MSELoss as MSELoss,
    MarginRankingLoss as MarginRankingLoss,
    MultiLabelMarginLoss as MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss as MultiLabelSoftMarginLoss,
    MultiMarginLoss as MultiMarginLoss,
    NLLLoss as NLLLoss,
    NLLLoss2d as NLLLoss2d,
    PoissonNLLLoss as PoissonNLLLoss,
    SmoothL1Loss as SmoothL1Loss,
    SoftMarginLoss as SoftMarginLoss,
    TripletMarginLoss as TripletMarginLoss,
)
from kiln.nn.module import (
    Module as Module,
)
from kiln.nn.multihead import (
    MultiheadAttention as MultiheadAttention,
)
from kiln.nn.normalisations import (
    BatchNorm1d as BatchNorm1d,
    BatchNorm2d as BatchNorm2d,
    BatchNorm3d as BatchNorm3d,
    CrossMapLRN2d as CrossMapLRN2d,
    GroupNorm as GroupNorm,
    InstanceNorm1d as InstanceNorm1d,
    InstanceNorm2d as InstanceNorm2d,
    InstanceNorm3d as InstanceNorm3d,
    LayerNorm as LayerNorm,
    LocalResponseNorm as LocalResponseNorm,
    RMSNorm as RMSNorm,
)
from kiln.nn.padding import (
    ChannelShuffle as ChannelShuffle,
    CircularPad1d as CircularPad1d,
    CircularPad2d as CircularPad2d,
    CircularPad3d as CircularPad3d,
    ConstantPad1d as ConstantPad1d,
    ConstantPad2d as ConstantPad2d,
    ConstantPad3d as ConstantPad3d,
    PixelShuffle as PixelShuffle,
    PixelUnshuffle as PixelUnshuffle,
    ReflectionPad1d as ReflectionPad1d,
    ReflectionPad2d as ReflectionPad2d,
    ReflectionPad3d as ReflectionPad3d,
    ReplicationPad1d as ReplicationPad1d,
    ReplicationPad2d as ReplicationPad2d,
    ReplicationPad3d as ReplicationPad3d,
    Unflatten as Unflatten,
    ZeroPad1d as ZeroPad1d,
    ZeroPad2d as ZeroPad2d,
    ZeroPad3d as ZeroPad3d,
)
from kiln.nn.parameter import (
    Buffer as Buffer,
    Parameter as Parameter,
    UninitializedBuffer as UninitializedBuffer,
    UninitializedParameter as UninitializedParameter,
)
from kiln.nn.parallel import (
    DataParallel as DataParallel,
)
from kiln.nn.parameter_containers import (
    ParameterDict as ParameterDict,
    ParameterList as ParameterList,
)
from kiln.nn.pooling import (
    AdaptiveAvgPool1d as AdaptiveAvgPool1d,
    AdaptiveAvgPool2d as AdaptiveAvgPool2d,
    AdaptiveAvgPool3d as AdaptiveAvgPool3d,
    AdaptiveMaxPool1d as AdaptiveMaxPool1d,
    AdaptiveMaxPool2d as AdaptiveMaxPool2d,
    AdaptiveMaxPool3d as AdaptiveMaxPool3d,
    AvgPool1d as AvgPool1d,
    AvgPool2d as AvgPool2d,
    AvgPool3d as AvgPool3d,
    FractionalMaxPool2d as FractionalMaxPool2d,
    FractionalMaxPool3d as FractionalMaxPool3d,
    LPPool1d as LPPool1d,
    LPPool2d as LPPool2d,
    LPPool3d as LPPool3d,
    MaxPool1d as MaxPool1d,
    MaxPool2d as MaxPool2d,
    MaxPool3d as MaxPool3d,
    MaxUnpool1d as MaxUnpool1d,
    MaxUnpool2d as MaxUnpool2d,
    MaxUnpool3d as MaxUnpool3d,
)
from kiln.nn.recurrent import (
    GRU as GRU,
    GRUCell as GRUCell,
    LSTM as LSTM,
    LSTMCell as LSTMCell,
    RNN as RNN,
    RNNBase as RNNBase,
    RNNCell as RNNCell,
    RNNCellBase as RNNCellBase,
)
from kiln.nn.sampling import (
    Fold as Fold,
    Unfold as Unfold,
    Upsample as Upsample,
    UpsamplingBilinear2d as UpsamplingBilinear2d,
    UpsamplingNearest2d as UpsamplingNearest2d,
)
from kiln.nn.similarity import (
    CosineSimilarity as CosineSimilarity,
    PairwiseDistance as PairwiseDistance,
    TripletMarginWithDistanceLoss as TripletMarginWithDistanceLoss,
)
from kiln.nn.synchronised_norms import SyncBatchNorm as SyncBatchNorm
from kiln.nn.transformers import (
    Transformer as Transformer,
    TransformerDecoder as TransformerDecoder,
    TransformerDecoderLayer as TransformerDecoderLayer,
    TransformerEncoder as TransformerEncoder,
    TransformerEncoderLayer as TransformerEncoderLayer,
)
from kiln.table.callables import name_all as _name_all
from kiln.table.callables import name_methods as _name_methods

_name_all(globals(), "kiln.nn")
for _made in Module.__mro__:
    _name_methods(
        _made,
        ("add_module", "get_buffer", "get_parameter", "get_submodule", "load_state_dict", "register_buffer",
         "register_module", "register_parameter", "requires_grad_", "set_submodule", "to", "train", "type"),
        "Module",
    )  # fmt: skip
del _made
