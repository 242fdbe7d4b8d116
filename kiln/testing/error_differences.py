"""What errors and warnings differ in on purpose, and why; the scan reports what it no longer meets."""

from __future__ import annotations

# (path, finding, why): regular expressions; the path from its beginning, the finding anywhere.
Differences = list[tuple[str, str, str]]
UNNAMED: Differences = [
    (
        "nn.(MultiheadAttention|Transformer|Hardtanh|Embedding)",
        "internal AssertionError",
        "PyTorch's type here, raised on purpose",
    ),
    (
        "(Tensor|get_|is_|can_cast|promote_types|autograd)",
        "(inside|unnamed|internal) (TypeError|AttributeError|RuntimeError)",
        "told by the core or by Python, of one argument",
    ),
    ("nn.Transformer", "unnamed", "told of the layer inside"),
    ("vmap|pointwise", "lines of kiln's", "of the function that it makes"),
    (
        "(nn|jit)[.]",
        "lines of kiln's .*TypeError: .*(unexpected keyword|takes 1 positional)",
        "the base's constructor",
    ),
    ("nn.(Lazy)?(Conv|LayerNorm|RMSNorm)", "unnamed MemoryError", "the allocator's"),
    ("Tensor.(size|stride)", "unnamed IndexError", "told by the core"),
    ("", "unnamed ValueError: The truth value", "NumPy's, of a flag that is no flag"),
    ("func", "inside TypeError: .*object is not callable", "of what is given for a function"),
    ("optim.lr_scheduler.MultiStepLR", "inside TypeError", "Python's, of what are no milestones"),
    (
        "nn.Module|optim.Optimizer",
        "internal AttributeError",
        "PyTorch's type here, or of no module",
    ),
    ("nn.(AdaptiveLog|utils.rnn)", "inside ValueError: .*invalid literal", "Python's, of what is no number"),
    ("utils.data.default_collate", "unnamed (Type|Runtime|Index)Error", "told of the batch as a tensor"),
    ("func|autograd", "unnamed|inside", "told by Python, of the function or of a flag"),
    ("func", "internal AttributeError", "of the function that is differentiated, given no tensor"),
    ("progress", "inside|lines of kiln's", "tqdm's, which makes the bar"),
    (
        "(cuda|xpu|mtia)[.]",
        "internal AssertionError: Torch not compiled",
        "PyTorch's type here, raised on purpose",
    ),
    ("utils.data", "inside TypeError", "Python's, of what is no batch"),
    ("", "unnamed TypeError: EnumType", "Python's, of a member of an enumeration"),
    (
        "Size|fx.(immutable_collections|ProxyableClassMeta)",
        "inside|unnamed",
        "Python's: a tuple, a list, a class",
    ),
    ("distributions.(biject_to|transform_to|identity_transform)", "unnamed", "objects that are called"),
    (
        "jit.fork|utils.checkpoint.checkpoint",
        "inside|unnamed",
        "told by Python, of the function that is called",
    ),
    ("nn.Module.load_state_dict", "unnamed RuntimeError: Error", "PyTorch's words"),
    ("sym_", "inside|unnamed", "Python's, of what is no number"),
    ("Tensor$", "unnamed|lines of kiln's", "PyTorch's name of the constructor, new, which the core calls"),
    ("set_deterministic_debug_mode", "unnamed", "PyTorch's words"),
    ("testing.assert", "unnamed|inside", "what a comparison says is the whole text"),
    ("storage.", "unnamed|inside", "PyTorch's words, or of memory: new"),
    ("distributions.Normal.sample", "unnamed MemoryError", "the allocator's"),
]

_WRONG = "raises (RuntimeError|ValueError|IndexError|NotImplementedError)"
_TAKES = "takes what PyTorch does not: "
# One line stands for all calls that differ in one way; what is of one function stands at the end.
KNOWN: Differences = [
    # out=
    (
        "",
        "refuses: .*(output with shape|expanded size|sizes provided|single memory location|match the size)",
        "out= is not resized",
    ),
    (
        "",
        "; PyTorch: TypeError: .*(unexpected keyword argument 'out'|[(,] ?out=)",
        "more functions take out=",
    ),
    ("", _TAKES + ".*(keyword argument 'out'|[(,] ?out=|argument 'out' must be)", "more functions take out="),
    ("", "(refuses|raises TypeError): .*unexpected keyword argument 'out'", "fewer functions take out="),
    ("", "(refuses|raises TypeError): .*argument 'out' must be Tensor", "out= is no number"),
    (
        "",
        _TAKES + "(RuntimeError|TypeError): .*([Ee]xpected out|dtype Double|dtype Half|got Half|got Double"
        "|only supports bool|desired output|scalar type|scalar_type|same type|same dtype"
        "|does not match input dtype|Found dtype|different dtypes|must be the same|non-boolean outputs"
        "|output tensor's dtype|dtype of out|hist tensor|output tensor to have|dtypeFloat"
        "|expected dtype|same datatype|Long tensor out|out kwarg)",
        "out= takes what it can hold, and operands of two dtypes are promoted",
    ),
    ("", "refuses: .*(functions with out=|can't be cast)", "out= asks for no gradient and chooses no dtype"),
    ("", _TAKES + "RuntimeError: .*functions with out=", "into what has history, under the hood by copy_"),
    ("", "PyTorch: TypeError: .*argument 'out' must be", "out= is told by what it cannot hold"),
    ("", "raises RuntimeError: .*; PyTorch: TypeError: torch.cat.*can't be cast", "as everywhere else"),
    # types that are taken
    ("", _TAKES + ".*must be Tensor, not", "a number, a list or an array may stand for a tensor"),
    ("", _TAKES + ".*argument '?dtype", "a dtype may be given by its name"),
    (
        "",
        _TAKES + "TypeError: .*must be .*, (not|but found element of type) "
        "(bool|int|float|NoneType|Tensor|complex|numpy|object|list_iterator)",
        "numbers, flags and tensors of one element stand for each other; None is the default",
    ),
    (
        "",
        _TAKES + "TypeError: .*invalid combination of arguments - got",
        "numbers for tensors, and more combinations of arguments",
    ),
    (
        "",
        _TAKES + "TypeError: .*(missing \\d+ required|has no len|takes \\d+ positional)",
        "more ways to call it",
    ),
    ("", _TAKES + "TypeError: .*(positional-only|keyword argument 'as_tuple')", "more ways to call it"),
    ("", _TAKES + "NotImplementedError", "of more dtypes"),
    (
        "",
        _TAKES
        + "RuntimeError: .*(could not infer output dtype|[Ee]xpected a floating point|not implemented for"
        "|bool tensor|Integral inputs|boolean tensor|input type encountered|Integer division|Boolean alpha"
        "|as a real number|infer dtype|floating point|not support bool)",
        "of more dtypes",
    ),
    (
        "",
        _TAKES + ".*(INTERNAL ASSERT|isIntegral|Expected !nested|0-d tensor|no attribute|view size is not"
        "|not differentiable with|Boolean value of|truth value of|not supported between|unhashable type"
        "|attribute name must be|unsupported operand|can't concat|object is not iterable"
        "|object was expected|object is not callable)",
        "PyTorch fails inside",
    ),
    ("", _TAKES + "RuntimeError: .*memory location", "overlapping: all is read before it is written"),
    ("", _TAKES + "RuntimeError: .*non-zero (dimensions|other)", "of no elements"),
    # which of several mistakes is told, and as what
    (
        "",
        "raises (Type|Assertion)Error: .*; PyTorch: (Attribute|Assertion|Key|UnboundLocal)Error",
        "PyTorch fails inside",
    ),
    (
        "",
        "raises .*; PyTorch: .*(Boolean value of|truth value of|tuple index out of|values to unpack"
        "|setStorage|vmap\\(|INTERNAL ASSERT|isIntegral|has no len)",
        "PyTorch fails inside",
    ),
    (
        "",
        _WRONG + ".*; PyTorch: (TypeError|AttributeError)",
        "of several mistakes another is told: numbers, flags, names and arrays stand for each other here, so "
        "that the value is looked at",
    ),
    (
        "",
        "raises TypeError: .*(must be|first argument|received an invalid|expected (an array|a mask|a tuple"
        "|a function|the text|what jit)).*; PyTorch",
        "of several mistakes the type is told",
    ),
    (
        "",
        "raises .*; PyTorch: (IndexError|ValueError|RuntimeError): (Dimension (out of range|specified)"
        "|Input dimension|Expected .* dimensions|both arguments|'weight' must be|weight (should|has)"
        "|Given normalized|index_select|linalg.vector_norm|-99 is)",
        "a tensor of too few dims is told by what is first asked of it",
    ),
    (
        "",
        "raises IndexError: .*; PyTorch: RuntimeError: torch.(gradient|histogramdd)",
        "by what is first asked of it",
    ),
    # dtypes
    ("", "refuses: NotImplementedError: .*not implemented for", "the dtype counts without elements, too"),
    (
        "",
        "(refuses|raises) NotImplementedError: .*not implemented for",
        "of several mistakes the dtype is told",
    ),
    (
        "",
        "raises .*; PyTorch: NotImplementedError: .*not implemented for",
        "of several mistakes another is told",
    ),
    (
        "",
        "raises RuntimeError: .*bool.*; PyTorch: (ValueError|IndexError)",
        "of several mistakes the dtype is told",
    ),
    ("linalg", "refuses: RuntimeError: .*(Expected|Low precision)", "the dtype counts without elements, too"),
    ("", "refuses: RuntimeError: .*(must not be a floating point|on a bool tensor)", "PyTorch truncates"),
    # warnings
    ("", "PyTorch: .*(deprecated|in beta|nested_tensor)", "PyTorch warns of its own future"),
    ("", "PyTorch: .*(non-contiguous, this will lower|may require a zer)", "PyTorch warns of its speed"),
    ("", "PyTorch: .*elements was resized", "PyTorch resizes out= of another shape and says so"),
    ("", "PyTorch: .*degrees of freedom is <= 0", "NaN or inf says it"),
    ("nn.(functional.rms_norm|RMSNorm)", "PyTorch: .*Mismatch dtype", "PyTorch warns of its speed"),
    ("", "PyTorch: .*(in an upcoming release|To copy construct)", "PyTorch warns of its future and of style"),
    (
        "",
        "(refuses|raises) ?:? ?TypeError: .*must be bool, not",
        "a text or a list is no flag, of no function",
    ),
    ("", _TAKES + "TypeError: descriptor", "a function and its method are one"),
    # of one function
    (
        "(nn.functional.)?fractional_max_pool",
        "(refuses|raises)",
        "sizes that do not fit, and windows of no elements, are told where PyTorch reads on",
    ),
    ("permute|softshrink|roll", "(takes|refuses)", "one way to name dims; numbers are no flags"),
    ("Tensor.to", "refuses: TypeError", "a flag alone converts nothing"),
    ("nn.Conv", "(refuses: TypeError|raises)", "sizes are Python's numbers"),
    ("nn.Parameter", _TAKES + "TypeError", "a flag is what is true"),
    ("optim", "raises (TypeError|ValueError): .*expected", "settings are Python's numbers"),
    ("nn.functional.max_unpool", "refuses: RuntimeError: .*invalid max index", "of no elements"),
    ("nn.functional.multilabel_soft", "refuses: TypeError: .*'weight'", "a weight is a tensor"),
    (
        "nn.functional.nll_loss",
        "raises RuntimeError: .*expected target dtype",
        "of several mistakes the dtype is told",
    ),
    ("addr", _TAKES + "RuntimeError: Boolean beta", "of more dtypes"),
    ("cdist", "(raises|takes).*; PyTorch: ValueError|cdist .*compute_mode", "told by the dims of the input"),
    ("cdist", _TAKES + "ValueError: (None|True)", "None is the default, any number a choice"),
    ("nn.functional.conv_transpose", "refuses: TypeError: .*'stride'", "strides are Python's numbers"),
    ("cumulative_trapezoid", "raises IndexError", "of no elements"),
    ("elu_|nn.functional.elu_", "refuses: TypeError", "alpha is its only setting by place"),
    (
        "nn.functional.embedding_bag",
        "raises RuntimeError: .*scalar types: Long",
        "positions are looked at first",
    ),
    (
        "feature_alpha_dropout|nn.functional.feature_alpha",
        "refuses: RuntimeError: .*at least 2",
        "of a batch",
    ),
    ("nn.functional.gaussian_nll_loss", "refuses: TypeError: .*'target'", "a target is a tensor"),
    ("nn.functional", _TAKES + "TypeError: .*multiple values for argument 'inplace'", "more ways to call it"),
    ("histogram", _TAKES + "RuntimeError: .*weight tensor", "weights are broadcast"),
    ("linalg.tensorinv", _TAKES + "RuntimeError: ArrayRef", "PyTorch fails inside"),
    ("nn.functional.huber_loss", "raises ValueError: .*Weights and input", "told by the sizes"),
    (
        "(nn.functional.)?upsample",
        "raises NotImplementedError: .*; PyTorch: ValueError",
        "told by the dims of the input",
    ),
    ("tile|type|unravel_index|Tensor.type", _TAKES + "TypeError", "more ways to call it"),
    ("Tensor.(register_hook|register_post)", "raises TypeError: .*a callable", "the type is told first"),
    ("Tensor.requires_grad_", _TAKES + "TypeError", "of flags it is the one that takes what is true"),
    ("is_inference", "raises AttributeError", "it asks the tensor"),
    ("nn.Bilinear", "raises ValueError", "PyTorch's, which looks at 0 alone"),
    (
        "nn.Conv",
        "refuses: (TypeError|ValueError): .*(expected ints|padding string)",
        "refused when it is made",
    ),
    ("nn|optim", "refuses: ValueError: .*truth value of an array", "a flag of many truths"),
    (
        "nn.(Gaussian|MultiLabelSoft|functional.multilabel_soft)",
        "refuses: TypeError: .*'target'",
        "a target is a tensor",
    ),
    ("nn.Unflatten", _TAKES + "TypeError", "looked at when it is called"),
    ("nn.functional", "refuses: TypeError: .*'reduction'", "a reduction is a name"),
    (
        "nn.functional.scaled_dot",
        "refuses: RuntimeError: .*of floats",
        "the dtype counts without elements, too",
    ),
    (
        "special",
        "refuses: NotImplementedError: .*has no derivative",
        "said when it is called, not in backward",
    ),
    (
        "(nn.functional.)?max_unpool",
        "raises RuntimeError: .*; PyTorch: ValueError",
        "told by the sizes of the result",
    ),
    (
        "nn.functional.interpolate",
        "raises NotImplementedError: .*; PyTorch: ValueError",
        "told by the dims of the input",
    ),
    ("broadcast_shapes", "raises RuntimeError: .*; PyTorch: AssertionError", "PyTorch fails inside"),
    ("lobpcg", "raises ValueError: .*; PyTorch: AssertionError", "PyTorch fails inside"),
    ("", "refuses: TypeError: .*must be .*, not complex", "there are no complex numbers yet"),
    ("detach_", _TAKES + ".*detach views", "PyTorch's arguments here are views of their memory"),
    (
        "(linalg|slogdet|inverse)",
        "refuses: (LinAlg|Runtime)Error: .*([Ss]ingular|is zero)",
        "singular but for rounding",
    ),
    ("cosine_similarity|nn.functional.cosine_s", _TAKES + ".*eps must be", "an eps is a number of the call"),
    ("einsum", "raises RuntimeError: .*; PyTorch: ValueError", "told by what is first asked of it"),
    (
        "instance_norm|nn.functional.instance_norm",
        "(raises|refuses).*(weight should contain|bool tensor)",
        "of no or bool elements",
    ),
    ("broadcast_shapes", "refuses: TypeError", "None is no shape"),
    ("", "refuses: TypeError: .*the first argument must be a Tensor", "only tensors are written"),
    (
        "((Tensor|nn.Module).)?to$",
        "raises TypeError: .*; PyTorch: RuntimeError: Cannot access acc",
        "a number names no device",
    ),
    ("(nn.functional.)?multilabel_soft|nn.MultiLabelSoft", _TAKES + "IndexError", "the loss is broadcast"),
    ("autograd.backward", "raises TypeError: .*; PyTorch: RuntimeError: `inputs`", "the type is told first"),
    ("Tensor.backward", _TAKES + "OverflowError", "a flag is what is true"),
    ("nn.RMSNorm", "refuses: RuntimeError: .*Inference tensors", "what is saved is the input"),
    ("nn.(NLL|CrossEntropy|CTC)Loss", "(raises|refuses|takes)", "dtypes of targets are told first"),
    ("nn.(RMS|Layer)Norm|nn.Transformer", "raises MemoryError", "as any memory that is not there"),
    ("optim.Adam", _TAKES + "ValueError: betas must be either both", "settings are Python's numbers"),
    ("combinations", _TAKES + "RuntimeError: .*overflow", "PyTorch counts before it chooses"),
    ("nn.functional.instance_norm", _TAKES + "IndexError: select", "of no elements"),
    ("feature_dropout", "refuses: RuntimeError: .*at least 2", "PyTorch fails inside"),
    ("", "refuses: .*is not a valid value for reduction", "whatever is reduced"),
    (
        "nn.functional.embedding_bag",
        "refuses: RuntimeError: .*scalar types: Long, Int",
        "positions are integers",
    ),
    ("(cumulative_)?trapezoid", "refuses: (IndexError|RuntimeError: .*bool)", "of no elements"),
    ("bincount", "refuses: RuntimeError: .*same length", "of no elements"),
    ("Tensor.logical_", "refuses: RuntimeError: .*(leaf|view)", "a leaf is not written, whatever the op"),
    ("nn.(functional.soft_margin|SoftMargin)", _TAKES + ".*broadcast shape", "the loss is broadcast"),
    ("(Tensor.)?index_(add|reduce)", "(refuses|raises)", "positions are looked at before anything else"),
    (
        "nn.(Zero|Reflection|Replication|Circular|Constant)Pad",
        "refuses: TypeError",
        "refused when it is made",
    ),
    ("nn.Embedding", "refuses: NotImplementedError", "no sparse gradients, none scaled by frequencies"),
    ("autograd.functional", _TAKES + "(TypeError|OverflowError)", "a flag is what is true"),
    ("cross", "warns .*PyTorch: not", "with out=, too"),
    ("", "warns .*Converting a tensor with requires_grad.*PyTorch: not", "of any setting that is a tensor"),
    ("nn.LazyConv", "refuses: (TypeError|MemoryError)|warns", "sizes are looked at when it is made"),
    ("nn.AdaptiveLogSoftmax", _TAKES + "RuntimeError", "bools are positions, too"),
    ("distributions.Gumbel", _TAKES + "TypeError: .*finfo", "bools are numbers"),
    ("nn.init.uniform_", "refuses: RuntimeError: .*bool tensor", "bounds are Python's numbers"),
    ("amp.GradScaler", "refuses", "a device is looked at when it is given"),
    (
        "",
        "raises TypeError: .*; PyTorch: RuntimeError: (Device index|Expected one of cpu)",
        "told by its type",
    ),
    ("", _TAKES + "RuntimeError: Device index must not be negative", "there is one device"),
    ("", _TAKES + "TypeError: .*takes no keyword arguments", "more ways to call it"),
    (
        "nn.AdaptiveLogSoftmax|optim.lr_scheduler.CyclicLR",
        "raises ValueError",
        "settings are Python's numbers",
    ),
    ("distributions.Independent", "refuses: RuntimeError: .*bool tensor", "a number of dims is Python's"),
    (
        "utils.data.default_collate",
        "raises (Type|Index)Error",
        "told of the batch as a tensor, or of no samples",
    ),
    ("nn.utils.vector_to_parameters", "(refuses|raises) ?:? ?ValueError", "a vector has as many elements"),
    (
        "nn.utils.parametrizations",
        "refuses: TypeError|" + _TAKES + "TypeError",
        "names and dims are Python's",
    ),
    ("nn.Module.to", "refuses: TypeError|" + _TAKES + "TypeError", "what converts nothing, and is no device"),
    ("distributions.Normal.expand", _TAKES + "TypeError", "any object is filled"),
    ("autograd.functional|func", "(raises|refuses).*(truth|Boolean) value", "a flag is one truth"),
    ("(cuda|xpu|mtia|accelerator)[.]", "raises|refuses", "refused whatever it is given"),
    ("Tensor.(cuda|xpu|mtia)", "PyTorch: TypeError: descriptor", "a function and its method are one"),
    (
        "Tensor.(cuda|xpu|mtia)",
        "PyTorch: RuntimeError: Cannot access acc",
        "there is no such device by any name",
    ),
    ("nn.FractionalMaxPool2d", "refuses: ValueError: .*kernel_size", "refused when it is made"),
    ("nn.init.dirac_", "refuses: ValueError", "PyTorch writes no group where there are fewer than none"),
    ("utils.data.default_collate", _TAKES + "TypeError: .*'bytes'", "bytes are a sequence of numbers"),
    # of what is no function of tensors
    ("accelerator", _TAKES + "RuntimeError: Cannot access", "there is no such device by any name"),
    ("cuda.(device|amp)", _TAKES + "(RuntimeError|TypeError)", "there is no such device by any name"),
    ("autograd.Variable", "takes|raises", "a flag is what is true"),
    ("autograd.profiler.EventList", "takes", "PyTorch's is a list"),
    ("distributions.(Compose|Distribution|Exponential)", "refuses: TypeError", "looked at when it is made"),
    ("distributions.utils.lazy_property", "refuses: TypeError", "looked at when it is made"),
    ("jit.CompilationUnit", _TAKES + "TypeError", "None is no text, and a number of frames any number"),
    ("jit.RecursiveScriptModule", "refuses: TypeError", "made of a module"),
    ("jit.enable_onednn_fusion", _TAKES + "TypeError", "a flag is what is true"),
    ("jit.trace_module", "raises AttributeError", "kiln's own `on_data` is known"),
    ("library.(custom_op|impl)", "(refuses|raises):? ?ValueError", "a name is looked at when it is given"),
    ("library.(register_fake|impl_abstract)", _TAKES + "ValueError", "a function is an operator"),
    ("nn.LazyConv", "refuses: ValueError", "sizes are looked at when it is made"),
    ("nn.Uninitialized", _TAKES + "TypeError", "a flag is what is true"),
    ("nn.attention.SDPBackend|profiler.Profiler", "refuses: ValueError", "PyTorch's are open enumerations"),
    ("nn.utils.parametrize.is_parametrized", "refuses: TypeError", "a name is a text"),
    ("overrides.has_torch_function", _TAKES + "TypeError: expected a sequence", "nothing is looked for"),
    ("random.fork_rng", "refuses: TypeError: .*positional", "PyTorch's further settings are of devices"),
    ("storage.TypedStorage", "raises TypeError: .*positional", "Python's, of too many arguments"),
    ("storage.TypedStorage", _TAKES + "TypeError: TypedStorage.__init__", "any sequence of numbers"),
    ("storage.UntypedStorage", _TAKES + "RuntimeError: .*but got (Tensor|bool)", "a tensor's memory"),
    ("types.Sym", "refuses: NotImplementedError", "sizes are numbers"),
    (
        "utils.checkpoint.checkpoint",
        "raises TypeError: .*; PyTorch: ValueError: Passing",
        "use_reentrant is False where it is not said",
    ),
    ("autograd.graph.register_multi", "PyTorch: AssertionError: Expected gradient", "PyTorch fails inside"),
    ("amp.autocast", "refuses", "a flag of many truths, or a tensor"),
    ("distributions.Normal.sample", "raises MemoryError", "as any memory that is not there"),
    ("nn.utils.rnn.unpad_sequence", "refuses: RuntimeError", "lengths are one row of whole numbers"),
    ("nn.utils.rnn.pad_sequence", "raises IndexError", "told by the dims of the sequences"),
    ("nn.utils.spectral_norm", "takes|raises|refuses", "a dim is a number, and counts from the end too"),
    ("(Tensor.)?subtract", "warns", "`sub`, of which PyTorch warns by that name alone"),
    ("Tensor.is_pinned", "takes", "no memory is pinned, on whatever device"),
    ("sym_sum", "refuses: TypeError", "numbers are added, not tensors"),
    ("broadcast_shapes", "raises TypeError", "told by what is first asked of it"),
    ("optim.lr_scheduler.MultiStepLR", "refuses: TypeError", "milestones are a list"),
    ("nn.LSTM", "raises IndexError: .*; PyTorch: KeyError", "of states that are no sequence"),
    (
        "storage.UntypedStorage",
        "raises TypeError: .*expected numbers",
        "told by the element that is no number",
    ),
    ("nn.functional.max_pool", "refuses: RuntimeError: .*bool tensor", "sizes are Python's numbers"),
]
