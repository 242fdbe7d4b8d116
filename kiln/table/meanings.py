"""What arguments are: by the letter of an op's parameter, else by their names, which mean one thing here.

Said once, for the core, for type checkers (`kiln.testing.type_forms`) and for messages (`mistakes.py`).
"""

from __future__ import annotations

from kiln.tuples import NamedTuple


class Meaning(NamedTuple):
    """How an entry annotates such a parameter; its type to a checker; what a message calls what it may be."""

    annotation: str
    type: str
    kinds: tuple[str, ...] = ()


LETTERS = {
    "T": Meaning("Tensor", "Tensor", ("Tensor",)),
    "O": Meaning("Tensor | None", "Tensor | None", ("Tensor", "NoneType")),
    "L": Meaning("Tensors", "Sequence[Tensor]", ("tuple of Tensors",)),
    "V": Meaning("Operand", "Operand", ("Tensor", "float")),
    "N": Meaning("Number", "Operand", ("float", "Tensor")),
    "S": Meaning("Structure", "Any"),
    "Z": Meaning("Sizes", "Sizes"),
}

# type -> the parameters that are of it wherever the table has them
NAMES = {
    "Tensor": """input other self A B L LD LU LU_data LU_pivots M pivots tau a b b_hh b_ih bias boundaries
        condition grid index indices key query offsets per_sample_weights prob running_mean running_var
        mask sorted_sequence sorter source src target targets tensor tensor1 tensor2 the_template theta
        vec2 w_hh w_ih weight weights x x1 x2 y log_probs aweights fweights attn_mask prepend append
        input_lengths target_lengths lengths new_state hx count""",
    "Operand": "exponent value fill_value values n test_elements elements",
    "Sequence[Tensor]": "tensors",
    "int": "diagonal num_classes minlength decimals ignore_index",
    "Number": """alpha beta start end step s scale low high dx correction lambd eps p maxnorm lower upper
        threshold margin negative_slope k""",
    "float | Tensor": "atol rtol tol rcond mean std q var",
    "float | str": "ord",
    "float | Sequence[float]": "scale_factor",
    "float | Sequence[float] | Sequence[Tensor]": "spacing",
    "Sequence[float]": "range",
    "int | Sequence[int]": "kernel_size stride dilation output_padding shifts",
    "int | Sequence[int] | str": "padding",
    "int | Sequence[int | None] | None": "output_size",
    "Sequence[int]": "size shape sizes split_sizes normalized_shape physical_layout pad dims",
    "Dims": "dim",
    "bool": "keepdim",
    "str": "reduction driver compute_mode reduce",
    "DType": "dtype",
    "Device": "device",
    "Generator": "generator",
    "memory_format": "memory_format",
    "object": "obj",
    "Data": "data",
    "Array": "ndarray",
    "Buffer": "buffer",
    "type[Tensor]": "cls",
}  # fmt: skip
TYPE_OF = {name: text for text, names in NAMES.items() for name in names.split()}
