"""Small programs that write in place: views, histories, saved values, modes, hooks. Their name says what.

A program is the body of a function of K (the framework), `leaf(*shape)` and `const(*shape)` (with and without
requires_grad, of quarters), and `back(y, *xs)`: the gradients of xs after y.backward(of quarters).
"""

PROGRAMS = {
    "base_t_row": "x = leaf(3, 4); y = (x * 2).t(); v = y[1]; v.mul_(3); return back(y, x)",
    "base_noncontig_fresh": (
        "x = leaf(3, 4); y = K.empty_strided((3, 4), (1, 3)); y.copy_(x); v = y[1]; "
        "v.mul_(y[0].clone()); return back(y, x)"
    ),
    "base_noncontig_const": (
        "x = leaf(4); y = const(3, 4).t().contiguous().t().detach(); v = y[1]; v.mul_(x); "
        "return [y, v, *back(y, x)]"
    ),
    "base_detached_gap": (
        "x = leaf(4); y = const(3, 8)[:, ::2].detach(); v = y[1]; v.mul_(x); return [y, v, *back(y, x)]"
    ),
    "base_expanded": "x = leaf(4); y = x.clone().expand(3, 4); y.mul_(2); return back(y, x)",
    "base_expanded_row": "x = leaf(4); y = x.clone().expand(3, 4); y[1].mul_(2); return [y, *back(y, x)]",
    "base_expanded_copy": "x = leaf(4); y = x.clone().expand(3, 4); y.copy_(y); return [y, *back(y, x)]",
    "detach_expanded_row": (
        "x = leaf(4); y = const(4).expand(3, 4).detach(); y[1].mul_(x); return [y, *back(y, x)]"
    ),
    "view_of_view": (
        "x = leaf(4, 6); y = x * 2; v = y[1:3]; u = v[:, 2:5]; z = u.t(); z.mul_(3); y.add_(1); "
        "u.mul_(y[0, 2:5]); return [*back(y + 0, x), u, v, z]"
    ),
    "view_of_view_grad_via_view": (
        "x = leaf(4, 6); y = x * 2; v = y[1:3]; u = v[:, 2:5]; u.mul_(u.detach()); return back(v * v, x)"
    ),
    "unbind_inplace": "x = leaf(3, 4); y = x * 1; a, b, c = y.unbind(0); a.mul_(2); return back(y, x)",
    "unbind_inplace_const": "x = const(3, 4); a, b, c = x.unbind(0); a.mul_(2); return [x]",
    "unbind_inplace_const_grad": "x = const(3, 4); w = leaf(4); a, b, c = x.unbind(0); a.mul_(w); return [x]",
    "unbind_inplace_nograd": (
        "x = leaf(3, 4); y = x * 1; a, b, c = y.unbind(0)\nwith K.no_grad(): a.mul_(2)\nreturn back(y, x)"
    ),
    "unbind_base_write": "x = leaf(3, 4); y = x * 1; a, b, c = y.unbind(0); y.mul_(2); return back(a, x)",
    "unbind_made_nograd": (
        "x = leaf(3, 4); y = x * 1\nwith K.no_grad(): a, b, c = y.unbind(0)\na.mul_(2); return back(y, x)"
    ),
    "split_inplace": "x = leaf(4, 4); y = x * 1; a, b = y.split(2); a.mul_(2); return back(y, x)",
    "chunk_inplace": "x = leaf(4, 4); y = x * 1; a, b = y.chunk(2); b.mul_(2); return back(y, x)",
    "tensor_split_inplace": (
        "x = leaf(4, 4); y = x * 1; a, b = K.tensor_split(y, 2); b.mul_(2); return back(y, x)"
    ),
    "hsplit_inplace": "x = leaf(4, 4); y = x * 1; a, b = K.hsplit(y, 2); b.mul_(2); return back(y, x)",
    "split_sizes_inplace": "x = leaf(4, 4); y = x * 1; a, b = y.split([1, 3]); a.mul_(2); return back(y, x)",
    "iter_inplace": "x = leaf(3, 4); y = x * 1\nfor r in y: r.mul_(2)\nreturn back(y, x)",
    "split_view_inplace": "x = leaf(4, 4); y = x * 1; a, b = y.split(2); a[0].mul_(2); return back(y, x)",
    "single_view_of_multi_base_write": (
        "x = leaf(4, 4); y = x * 1; a, b = y.split(2); v = a.view(8); y.mul_(2); return back(v, x)"
    ),
    "nograd_view_inplace": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y[0]\nv.mul_(2); return back(y, x)"
    ),
    "nograd_view_of_const_inplace": (
        "x = const(4, 4); w = leaf(4)\nwith K.no_grad(): v = x[0]\nv.mul_(w); return [x, *back(x, w)]"
    ),
    "nograd_view_of_leaf_inplace": "x = leaf(4, 4)\nwith K.no_grad(): v = x[0]\nv.mul_(2); return [x]",
    "nograd_view_of_leaf_inplace_nograd": (
        "x = leaf(4, 4)\nwith K.no_grad(): v = x[0]; v.mul_(2)\nreturn [x, v.requires_grad, v.is_leaf]"
    ),
    "nograd_view_requires": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y[0]\n"
        "return [v.requires_grad, v.is_leaf, v._base is y, v._is_view()]"
    ),
    "nograd_view_base_write": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y[0]\ny.mul_(2); "
        "return [v.requires_grad, v.grad_fn is None]"
    ),
    "nograd_view_base_const_gets_history": (
        "x = const(4, 4); w = leaf(4, 4)\nwith K.no_grad(): v = x[0]\nx.mul_(w); return [v.requires_grad]"
    ),
    "nograd_view_base_write2": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y[0]\ny.mul_(2); return back(v * 1, x)"
    ),
    "nograd_view_then_read": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y[0]\nreturn [(v * 2).requires_grad]"
    ),
    "view_of_leaf_inplace": "x = leaf(4, 4); x[0].mul_(2)",
    "view_of_leaf_nograd_inplace": (
        "x = leaf(4, 4); v = x[0]\nwith K.no_grad(): v.mul_(2)\n"
        "return [x, v, v.requires_grad, v.is_leaf, *back(v, x)]"
    ),
    "leaf_nograd_then_view": (
        "x = leaf(4, 4); v = x[0]\nwith K.no_grad(): x.mul_(2)\n"
        "return [x, v, v.requires_grad, v.is_leaf, *back(v, x)]"
    ),
    "detach_write_saved": "x = leaf(4); y = x * 1; z = y * y; y.detach().add_(1); return back(z, x)",
    "data_write_saved": "x = leaf(4); y = x * 1; z = y * y; y.data.add_(1); return back(z, x)",
    "detach__view": "x = leaf(4); y = x * 1; v = y[0:2]; v.detach_()",
    "detach__view_const": "x = const(4); v = x[0:2]; v.detach_(); return [v._base is None, v._is_view()]",
    "detach_view_write": "x = leaf(4); y = x * 1; v = y[0:2].detach(); v.mul_(3); return [y, *back(y, x)]",
    "requires_grad__view": (
        "x = const(4); v = x[0:2].requires_grad_(); z = v * v; "
        "return [*back(z, v), v.is_leaf, x.requires_grad]"
    ),
    "requires_grad__view_write": "x = const(4); v = x[0:2].requires_grad_(); v.mul_(2)",
    "requires_grad__view_base_write": (
        "x = const(4); v = x[0:2].requires_grad_(); x.mul_(2); "
        "return [v.requires_grad, v.is_leaf, x.requires_grad, v]"
    ),
    "requires_grad__view_base_write_grad": (
        "x = const(4); w = leaf(4); v = x[0:2].requires_grad_(); x.mul_(w); "
        "return [v.requires_grad, v.is_leaf]"
    ),
    "requires_grad__base_after_view": (
        "x = const(4); v = x[0:2]; x.requires_grad_(); return [v.requires_grad]"
    ),
    "requires_grad__base_after_view_write": (
        "x = const(4); v = x[0:2]; x.requires_grad_(); v.mul_(2); return [x]"
    ),
    "requires_grad__base_after_view_write2": (
        "x = const(4); w = leaf(2); v = x[0:2]; x.requires_grad_(); v.mul_(w); return [x]"
    ),
    "copy_hist": (
        "x = leaf(3, 4); y = K.zeros(3, 4); y.copy_(x * 2); "
        "return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"
    ),
    "copy_dtype": (
        "x = leaf(3, 4); y = K.zeros(3, 4, dtype=K.float64); y.copy_(x * 2); z = y.float(); "
        "return back(z, x) + [x.grad.dtype == K.float32]"
    ),
    "copy_broadcast": "x = leaf(4); y = K.zeros(3, 4); y.copy_(x * 2); return back(y, x)",
    "copy_view_const": (
        "x = leaf(4); y = K.zeros(3, 4); v = y[1]; v.copy_(x * 2); "
        "return [y.grad_fn.name(), v.grad_fn.name(), y.requires_grad, *back(y, x)]"
    ),
    "copy_int_target": (
        "x = leaf(4); y = K.zeros(4, dtype=K.int64); y.copy_(x * 2); return [y.requires_grad, y]"
    ),
    "setitem_int_target": (
        "x = leaf(4); y = K.zeros(3, 4, dtype=K.int64); y[0] = x * 2; return [y.requires_grad, y]"
    ),
    "fill_": ("x = leaf(4); y = x * 2; y.fill_(3); return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"),
    "fill_tensor": (
        "x = leaf(); y = K.zeros(4); y.fill_(x * 2); return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"
    ),
    "zero_": "x = leaf(4); y = x * 2; y.zero_(); return [y.requires_grad, y.grad_fn.name(), *back(y, x)]",
    "zero_view": (
        "x = leaf(4); y = x * 2; y[1:3].zero_(); return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"
    ),
    "masked_fill_": (
        "x = leaf(4); y = x * 2; y.masked_fill_(y > 0, 3); "
        "return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"
    ),
    "masked_fill_t": (
        "x = leaf(4); w = leaf(); y = x * 2; y.masked_fill_(y > 0, w); "
        "return [y.requires_grad, y.grad_fn.name(), *back(y, x, w)]"
    ),
    "index_put_": (
        "x = leaf(4); w = leaf(2); y = x * 2; y.index_put_((K.tensor([0, 2]),), w); "
        "return [y.requires_grad, *back(y, x, w)]"
    ),
    "index_put_acc": (
        "x = leaf(4); w = leaf(3); y = x * 2; "
        "y.index_put_((K.tensor([0, 2, 2]),), w, accumulate=True); "
        "return [y.requires_grad, *back(y, x, w)]"
    ),
    "setitem_kinds": (
        "x = leaf(3, 4); w = leaf(4); u = leaf(2, seed=7); y = x * 2; y[0] = w; y[:, 1] = 5; "
        "y[..., -1] = w[:3] * 2; y[1, 2] = w[0]; y[[0, 2], 0] = u; y[y > 1] = 0; "
        "y[1:, 1:3] = w[None, 1:3]; y[None, 1] = w * 3; m = K.tensor([True, False, True]); "
        "y[m, 3] = u * 2; y[K.tensor([0, 1])] *= 2; y[1] += w; return [y, *back(y, x, w, u)]"
    ),
    "setitem_mask_tensor": (
        "x = leaf(3, 4); w = leaf(4); y = x * 2; y[K.tensor([True, False, False])] = w; "
        "y[y > 100] = w[:0]; return [y, *back(y, x, w)]"
    ),
    "setitem_scalar_tensor": (
        "x = leaf(3, 4); w = leaf(); y = x * 2; y[0] = w; y[y < 0] = w * 2; y[1, 1] = w; "
        "return [y, *back(y, x, w)]"
    ),
    "setitem_const": (
        "w = leaf(4); y = K.zeros(3, 4); y[1] = w; y[0] = y[1] * 2; y[2] = y[0] * y[1]; "
        "return [y, *back(y, w)]"
    ),
    "setitem_on_leaf": "x = leaf(3, 4); x[0] = 1",
    "setitem_on_leaf_mask": "x = leaf(3, 4); x[x > 0] = 1",
    "setitem_on_leaf_idx": "x = leaf(3, 4); x[[0, 1]] = 1",
    "scatter_": (
        "x = leaf(3, 4); w = leaf(3, 2); y = x * 2; "
        "y.scatter_(1, K.tensor([[0, 1], [2, 3], [1, 0]]), w); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "scatter_add_": (
        "x = leaf(3, 4); w = leaf(3, 2); y = x * 2; "
        "y.scatter_add_(1, K.tensor([[0, 0], [2, 3], [1, 0]]), w); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "scatter_reduce_": (
        "x = leaf(3, 4); w = leaf(3, 2); y = x * 2; "
        "y.scatter_reduce_(1, K.tensor([[0, 0], [2, 3], [1, 0]]), w, 'prod'); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "index_add_": (
        "x = leaf(3, 4); w = leaf(2, 4); y = x * 2; y.index_add_(0, K.tensor([0, 0]), w, alpha=2); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "index_copy_": (
        "x = leaf(3, 4); w = leaf(2, 4); y = x * 2; y.index_copy_(0, K.tensor([0, 2]), w); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "index_fill_": (
        "x = leaf(3, 4); w = leaf(); y = x * 2; y.index_fill_(0, K.tensor([0, 2]), w); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "masked_scatter_": (
        "x = leaf(3, 4); w = leaf(12); y = x * 2; y.masked_scatter_(y > 0, w); "
        "return [y.grad_fn.name(), *back(y, x, w)]"
    ),
    "slices_iadd": (
        "x = leaf(3, 4); y = x * 2; y[0] += y[1]; y[:, 1] *= y[:, 2]; y[1:] -= x[:2]; "
        "y[:, ::2] /= 2; y[0, 0] **= 2; return [y, *back(y, x)]"
    ),
    "out_requires": "x = leaf(4); y = x * 2; K.add(x, x, out=y)",
    "out_requires_nograd": "x = leaf(4); y = x * 2\nwith K.no_grad(): K.add(x, x, out=y)\nreturn [y]",
    "out_const_in_requires": "x = leaf(4); y = K.zeros(4); K.add(x, x, out=y)",
    "out_requires_const_in": "x = const(4); y = leaf(4); K.add(x, x, out=y)",
    "out_sum": "x = leaf(4, 4); y = K.zeros(4); K.sum(x, 0, out=y)",
    "out_matmul": "x = leaf(4, 4); y = K.zeros(4, 4); K.matmul(x, x, out=y)",
    "out_cat": "x = leaf(4, 4); y = K.zeros(8, 4); K.cat([x, x], out=y)",
    "swap_values": (
        "x = leaf(3, 4); y = x * 2; y[0], y[1] = (y[1].clone(), y[0].clone()); return [y, *back(y * y, x)]"
    ),
    "swap_values_alias": "x = leaf(3, 4); y = x * 2; y[0], y[1] = (y[1], y[0]); return [y, *back(y * 3, x)]",
    "rnn_buffer": (
        "w = leaf(4, 4); h = K.zeros(5, 4); x = const(5, 4)\n"
        "for t in range(1, 5): h[t] = K.tanh(h[t - 1].clone() @ w + x[t])\nreturn [h, *back(h, w)]"
    ),
    "rnn_buffer_noclone": (
        "w = leaf(4, 4); h = K.zeros(5, 4); x = const(5, 4)\n"
        "for t in range(1, 5): h[t] = K.tanh(h[t - 1] @ w + x[t])\nreturn [h, *back(h, w)]"
    ),
    "cumulative": (
        "w = leaf(4); y = K.zeros(4)\nfor t in range(4): y += w * t; y *= 2\nreturn [y, *back(y, w)]"
    ),
    "cumulative_saved": "w = leaf(4); y = K.ones(4)\nfor t in range(4): y *= w\nreturn [y, *back(y, w)]",
    "several_uses": (
        "x = leaf(4); y = x * 2; a = y + 1; b = y.sum(); c = y * 3; y.add_(1); d = y * y; "
        "return back(a + b + c + d, x)"
    ),
    "exp_then": "x = leaf(4); y = (x * 1).exp_(); return back(y * 2, x)",
    "saved_results": (
        "x = leaf(4); y = (x * 1).exp_(); y = y.sigmoid_(); y = y.tanh_(); y = y.relu_(); "
        "y.sqrt_(); return back(y, x)"
    ),
    "exp_add": "x = leaf(4); y = x.exp(); y.add_(1); return back(y, x)",
    "relu_add": "x = leaf(4); y = x.relu(); y.add_(1); return back(y, x)",
    "int_view": (
        "x = K.arange(6); v = x[2:4]; v.mul_(2); "
        "return [x, x._version, v._version, v._is_view(), v._base is x]"
    ),
    "bool_view": (
        "x = K.zeros(6, dtype=K.bool); v = x[2:4]; v.fill_(True); return [x, x._version, v._base is x]"
    ),
    "retain_then_inplace": (
        "x = leaf(4); y = x * 2; y.retain_grad(); y.mul_(3); z = y * 1; g = back(z, x); return [y.grad, *g]"
    ),
    "inplace_then_retain": (
        "x = leaf(4); y = x * 2; y.mul_(3); y.retain_grad(); z = y * 1; g = back(z, x); return [y.grad, *g]"
    ),
    "retain_view_inplace": (
        "x = leaf(4); y = x * 2; y.retain_grad(); v = y[:2]; v.mul_(3); z = y * 1; g = back(z, x); "
        "return [y.grad, *g]"
    ),
    "retain_view_self_inplace": (
        "x = leaf(4); y = x * 2; v = y[:2]; v.retain_grad(); v.mul_(3); z = v * 1; g = back(z, x); "
        "return [v.grad, *g]"
    ),
    "retain_view_base_inplace": (
        "x = leaf(4); y = x * 2; v = y[:2]; v.retain_grad(); y.mul_(3); z = v * 1; g = back(z, x); "
        "return [v.grad, *g]"
    ),
    "hook_then_inplace": (
        "L = []; x = leaf(4); y = x * 2; y.register_hook(lambda g: L.append(g.clone())); "
        "y.mul_(3); g = back(y, x); return [*L, *g]"
    ),
    "inplace_then_hook": (
        "L = []; x = leaf(4); y = x * 2; y.mul_(3); "
        "y.register_hook(lambda g: L.append(g.clone())); g = back(y, x); return [*L, *g]"
    ),
    "hook_modifies_then_inplace": (
        "x = leaf(4); y = x * 2; y.register_hook(lambda g: g * 10); y.mul_(3); "
        "y.register_hook(lambda g: g + 1); return back(y, x)"
    ),
    "hook_view_base_write": (
        "L = []; x = leaf(4); y = x * 2; v = y[:2]; "
        "v.register_hook(lambda g: L.append(g.clone())); y.mul_(3); g = back(v * 1, x); "
        "return [*L, *g]"
    ),
    "names_after": (
        "x = leaf(3, 4); y = x * 2; v = y[0]; out = [v.grad_fn.name()]; v.mul_(2); "
        "out += [v.grad_fn.name(), y.grad_fn.name()]; u = y.t(); y.add_(1); "
        "out += [v.grad_fn.name(), y.grad_fn.name(), u.grad_fn.name()]; w = y.view(12); y.mul_(2); "
        "out += [w.grad_fn.name()]; s = y[1:, ::2]; y.mul_(2); out += [s.grad_fn.name()]\n"
        "for f in (lambda y: y.unsqueeze(0), lambda y: y.expand(2, 3, 4), lambda y: y.permute(1, 0), "
        "lambda y: y.diagonal(), lambda y: y.unfold(0, 2, 1), lambda y: y.narrow(0, 1, 1), lambda y: "
        "y.view_as(y), lambda y: y[:, 0:1].squeeze(1), lambda y: y.flatten(), lambda y: "
        "y.reshape(-1), lambda y: y.select(0, 1), lambda y: y.movedim(0, 1), lambda y: y.alias() if "
        "hasattr(y, 'alias') else y.view(3, 4), lambda y: y.as_strided((2, 2), (1, 2))): z = f(y); "
        "n0 = z.grad_fn.name(); y.mul_(2); out += [n0 + '>' + z.grad_fn.name()]\nreturn out"
    ),
    "base_attr": (
        "x = leaf(3, 4); y = x * 2; v = y[0]; u = v[1:]; c = y.clone(); r = y.reshape(12); "
        "return [v._base is y, u._base is y, c._base is None, y._base is None, r._base is y, "
        "v._is_view(), y._is_view(), y.detach()._is_view(), y.detach()._base is None, "
        "y.data._is_view(), y.contiguous() is y, y.contiguous()._is_view()]"
    ),
    "t_hist": "x = leaf(3, 4); y = x * 2; y.t_(); y[0].mul_(2); return [y.grad_fn.name(), y, *back(y, x)]",
    "t_hist0": "x = leaf(3, 4); y = x * 2; y.t_(); return [y.grad_fn.name(), y, *back(y, x)]",
    "transpose_hist": "x = leaf(3, 4); y = x * 2; z = y * y; y.transpose_(0, 1); return [*back(y, x), z]",
    "transpose_saved": "x = leaf(3, 4); y = x * 2; z = y * y; y.transpose_(0, 1); return back(z, x)",
    "squeeze_hist": (
        "x = leaf(3, 1); y = x * 2; y.squeeze_(); y.unsqueeze_(0); y.swapaxes_(0, 1); "
        "return [y.grad_fn.name(), y, *back(y, x)]"
    ),
    "viewop_on_leaf": "x = leaf(3, 1); x.t_()",
    "viewop_on_leaf_nograd": (
        "x = leaf(3, 1)\nwith K.no_grad(): x.t_()\nreturn [x, x.requires_grad, x.is_leaf, *back(x * 2, x)]"
    ),
    "viewop_on_view_nograd": (
        "x = leaf(3, 4); y = x * 2; v = y[:2]\nwith K.no_grad(): v.t_()\n"
        "v.mul_(2); return [v, y, v.requires_grad, *back(y, x)]"
    ),
    "viewop_on_view_nograd_then_read": (
        "x = leaf(3, 4); y = x * 2; v = y[1]\nwith K.no_grad(): v.unsqueeze_(0)\n"
        "return [v, v.requires_grad, v.is_leaf, *back(v * v, x)]"
    ),
    "viewop_on_view_nograd_base_written": (
        "x = leaf(3, 4); y = x * 2; v = y[:1]\nwith K.no_grad(): v.squeeze_(0)\n"
        "z = v * v; y.mul_(3); return back(z, x)"
    ),
    "viewop_on_view_nograd_then_base_written": (
        "x = leaf(3, 4); y = x * 2; v = y[:1]\nwith K.no_grad(): v.as_strided_((2, 2), (4, 1), 1)\n"
        "y.mul_(3); return [v, *back(v, x)]"
    ),
    "viewop_on_view_of_leaf_nograd": "x = leaf(3, 4); v = x[:2]\nwith K.no_grad(): v.t_()\nv.mul_(2)",
    "viewop_on_one_of_several_nograd": (
        "x = leaf(3, 4); y = x * 1; v = y.unbind(0)[0]\nwith K.no_grad(): v.unsqueeze_(0)\nv.mul_(2)"
    ),
    "viewop_on_nograd_view_nograd": (
        "x = leaf(3, 4); y = x * 1\nwith K.no_grad(): v = y[:2]; v.t_()\nv.mul_(2)"
    ),
    "leaves_of_a_buffer_written_nograd": (
        "b = const(6); p, q = b.split([4, 2]); p.requires_grad_(); q.requires_grad_()\n"
        "with K.no_grad(): b.add_(1)\nreturn [b, *back(p.sum() * q, p, q)]"
    ),
    "leaves_of_a_buffer_nograd": (
        "b = const(6)\nwith K.no_grad(): p, q = b.split([4, 2])\np.requires_grad_(); q.requires_grad_()\n"
        "with K.no_grad(): p.add_(1); b.mul_(2)\nreturn [b, *back(p.sum() * q, p, q)]"
    ),
    "leaf_view_of_leaf_nograd": (
        "x = leaf(3, 4)\nwith K.no_grad(): v = x[0]\nv.requires_grad_()\n"
        "with K.no_grad(): x.mul_(2)\nreturn [v, *back(v * v, v)]"
    ),
    "unsafe_chunk_written": (
        "x = leaf(4, 3); y = x * 1; a, b = y.unsafe_chunk(2); a.mul_(b); return [a, *back(a, x)]"
    ),
    "unsafe_split_written": (
        "x = leaf(4, 3); y = x * 1; a, b = y.unsafe_split_with_sizes([1, 3]); b.sigmoid_(); "
        "return [b, *back(b, x)]"
    ),
    "viewop_on_hist_nograd": (
        "x = leaf(3, 4); y = x * 1\nwith K.no_grad(): y.unsqueeze_(0)\n"
        "return [y, y.requires_grad, y.is_leaf, *back(y * y, x)]"
    ),
    "viewop_on_view": (
        "x = leaf(3, 4); y = x * 2; v = y[:2]; v.t_(); v.mul_(2); "
        "return [v, y, v.grad_fn.name(), y.grad_fn.name(), *back(y, x)]"
    ),
    "viewop_on_base": (
        "x = leaf(3, 4); y = x * 2; v = y[:2]; y.t_(); y.mul_(2); "
        "return [v, y, v.grad_fn.name(), *back(v, x)]"
    ),
    "viewop_on_const_view": (
        "x = const(3, 4); v = x[:2]; v.t_(); w = leaf(4, 2); v.mul_(w); "
        "return [v, x, v._base is x, *back(x, w)]"
    ),
    "viewop_version": (
        "x = const(3, 4); v = x[0]; x.t_(); x.squeeze_(); x.unsqueeze_(0); return [x._version, v._version, x]"
    ),
    "as_strided_hist": (
        "x = leaf(3, 4); y = x * 2; y.as_strided_((2, 2), (1, 2)); return [y.grad_fn.name(), y, *back(y, x)]"
    ),
    "resize_hist": "x = leaf(3, 4); y = x * 2; y.resize_(2, 2)",
    "resize_as_hist": "x = leaf(3, 4); y = x * 2; y.resize_as_(x); return [y, *back(y, x)]",
    "set_hist": "x = leaf(3, 4); y = x * 2; y.set_(const(2, 2)); return [y, y.requires_grad]",
    "set_leaf": "x = leaf(3, 4); x.set_(const(2, 2)); return [x, x.requires_grad]",
    "set_source_hist": (
        "x = leaf(3, 4); y = const(2, 2); y.set_(x * 2); return [y, y.requires_grad, y.is_leaf]"
    ),
    "resize_as_const": "y = const(2, 2); y.resize_as_(const(4)); return [y]",
    "swapdims": "x = leaf(3, 4); y = x * 2; y.swapdims_(0, 1); return [y.grad_fn.name(), y, *back(y, x)]",
    "matmul_saved_write": "x = leaf(3, 4); w = const(4, 2); y = x @ w; w.add_(1); return back(y, x)",
    "leaf_written_nograd_saved": "x = leaf(3, 4); y = x * x\nwith K.no_grad(): x.add_(1)\nreturn back(y, x)",
    "leaf_add_nograd_notsaved": (
        "x = leaf(3, 4); y = x * 2 + 1\nwith K.no_grad(): x.add_(1)\nreturn back(y, x)"
    ),
    "add_inplace_one": "x = leaf(4); y = x + 1; y.add_(1); return back(y, x)",
    "mul_scalar_then_write": "x = leaf(4); a = x * 1; z = a * 2; a.mul_(3); return back(z + a, x)",
    "clone_mask": "x = leaf(4); y = x.clone(); y[y > 0] = 0; return back(y, x)",
    "mul_self_inplace": "x = leaf(4); y = x * 1; y.mul_(y); return back(y, x)",
    "mul_view_inplace_of_self": "x = leaf(4, 4); y = x * 1; y.mul_(y.t().clone()); return back(y, x)",
    "overlap_self_t": "x = leaf(4, 4); y = x * 1; y.mul_(y.t()); return back(y, x)",
    "inplace_broadcast_bad": "x = leaf(4); y = x * 1; y.mul_(K.ones(3, 4)); return back(y, x)",
    "inplace_dtype_bad": "x = K.arange(4); x.mul_(1.5)",
    "inplace_dtype_bad2": "x = K.arange(4); x.mul_(K.ones(4) * 1.5)",
    "inplace_half_by_float_grad": (
        "x = leaf(4); y = K.ones(4, dtype=K.float64); y.mul_(x); return back(y.float(), x)"
    ),
    "inplace_0d_const_target": "x = leaf(); y = K.ones(4); y += x; return [y.requires_grad, *back(y, x)]",
    "grad_of_base_and_view": (
        "x = leaf(4, 4); y = x * 1; v = y[1]; v.mul_(2); "
        "return list(K.autograd.grad((y * y).sum() + v.sum(), (x,)))"
    ),
    "grad_wrt_view": (
        "x = leaf(4, 4); y = x * 1; v = y[1]; v.mul_(2); return list(K.autograd.grad((v * v).sum(), (v,)))"
    ),
    "grad_wrt_base_after": (
        "x = leaf(4, 4); y = x * 1; v = y[1]; v.mul_(2); return list(K.autograd.grad((v * v).sum(), (y,)))"
    ),
    "double_backward_view": (
        "x = leaf(4, 4); y = x * x; v = y[1]; v.mul_(y[0].clone()); "
        "g, = K.autograd.grad((y * y).sum(), x, create_graph=True); return back(g * 1, x)"
    ),
    "index_select_write": (
        "x = leaf(4, 4); y = x * 1; z = y.index_select(0, K.tensor([0, 1])); y.add_(1); return back(z, x)"
    ),
    "index_saved_write": "x = leaf(4); i = K.tensor([0, 1]); y = x[i]; i.add_(1); return back(y, x)",
    "gather_idx_write": "x = leaf(4); i = K.tensor([0, 1]); y = x.gather(0, i); i.add_(1); return back(y, x)",
    "mask_saved_write": (
        "x = leaf(4); m = x.detach() > 0; y = K.where(m, x, x * 2); m.fill_(False); return back(y, x)"
    ),
    "maskedfill_mask_write": (
        "x = leaf(4); m = x.detach() > 0; y = x.masked_fill(m, 0.0); m.fill_(False); return back(y, x)"
    ),
    "select_scatter_after": (
        "x = leaf(4, 4); y = x * 1; v = y.diagonal(); v.mul_(3); v.add_(y[0].clone()); "
        "return [y, *back(y, x)]"
    ),
    "unfold_write": "x = leaf(6); y = x * 1; v = y.unfold(0, 2, 2); v.mul_(3); return [y, *back(y, x)]",
    "chunks_of_param_nograd": (
        "x = leaf(4, 4)\nwith K.no_grad(): a, b = x.chunk(2); a.zero_(); b.fill_(1)\n"
        "return [x, *back(x * x, x)]"
    ),
    "param_data_set": "x = leaf(4, 4); y = x * x; x.data = K.ones(4, 4); return [x, *back(y, x)]",
    "data_view": "x = leaf(4, 4); x.data[0].mul_(2); x.data[1] = 3; return [x, x._version]",
    "enable_grad_inplace_in_nograd": (
        "x = leaf(4); y = x * 1\nwith K.no_grad(): y.mul_(2)\n"
        "return [y.requires_grad, y.grad_fn.name(), *back(y, x)]"
    ),
    "nograd_write_saved": "x = leaf(4); y = x * 1; z = y * y\nwith K.no_grad(): y.mul_(2)\nreturn back(z, x)",
    "nograd_write_view_of_hist": (
        "x = leaf(4); y = x * 1; v = y[:2]\nwith K.no_grad(): v.mul_(2)\nreturn back(y * y, x)"
    ),
    "nograd_const_view_then_requires": (
        "y = K.zeros(4); v = y[:2]; x = leaf(2); v.add_(x); "
        "return [y.requires_grad, v.requires_grad, y.is_leaf, v.is_leaf, *back(y, x)]"
    ),
    "detached_view_gets_hist": (
        "y = K.zeros(4); d = y.detach(); x = leaf(4); d.add_(x); return [y.requires_grad, d.requires_grad, y]"
    ),
    "base_freed": "x = leaf(4, 4); v = (x * 2)[1]; v.mul_(3); return back(v, x)",
    "dropout_inplace": (
        "x = leaf(4); y = x * 1; F = K.nn.functional; y = F.dropout(y, 0.0, True, inplace=True); "
        "y = F.relu(y, inplace=True); y = F.leaky_relu(y, 0.1, inplace=True); "
        "y = F.elu(y, inplace=True); y = F.hardtanh(y, inplace=True); y = F.silu(y, inplace=True); "
        "y = F.hardswish(y, inplace=True); return back(y, x)"
    ),
    "leaky_neg_slope": (
        "x = leaf(4); y = x * 1; y = K.nn.functional.leaky_relu(y, -0.1, inplace=True); return back(y, x)"
    ),
    "elu_after": "x = leaf(4); y = x * 1; z = K.nn.functional.elu_(y); return back(z * 1, x)",
    "celu_after": "x = leaf(4); y = x * 1; z = K.celu_(y); return back(z * 1, x)",
    "silu_after": "x = leaf(4); y = x * 1; z = K.nn.functional.silu(y, inplace=True); return back(z * 1, x)",
    "conv_relu_inplace": (
        "x = leaf(3, 4); l = K.nn.Linear(4, 2, bias=True)\n"
        "with K.no_grad(): l.weight.fill_(0.5); l.bias.fill_(0.25)\nr = K.nn.ReLU(inplace=True); "
        "y = r(l(x)); return back(y, x, l.weight, l.bias)"
    ),
    "opt_step_between": (
        "w = leaf(4); opt = K.optim.SGD([w], 0.1); l1 = (w * 2).sum(); l2 = (w * 3).sum(); "
        "l1.backward(); opt.step(); l2.backward(); return [w, w.grad]"
    ),
    "opt_step_between_saved": (
        "w = leaf(4); opt = K.optim.SGD([w], 0.1); l1 = (w * 2).sum(); l2 = (w * w).sum(); "
        "l1.backward(); opt.step(); l2.backward(); return [w, w.grad]"
    ),
    "grad_inplace": (
        "x = leaf(4); (x * 2).sum().backward(); x.grad.mul_(2); x.grad[0] = 0; "
        "(x * 2).sum().backward(); return [x.grad]"
    ),
    "version_of_grad": (
        "x = leaf(4); (x * 2).sum().backward(); g = x.grad; v = g._version; "
        "(x * 2).sum().backward(); return [x.grad is g, g._version - v]"
    ),
    "loop_view_updates": (
        "x = leaf(6); y = x * 1\nfor i in range(5): y[i + 1] = y[i + 1] + y[i] * 0.5\nreturn [y, *back(y, x)]"
    ),
    "loop_view_updates_mul": (
        "x = leaf(6); y = x * 1\nfor i in range(5): y[i + 1] *= y[i]\nreturn [y, *back(y, x)]"
    ),
    "loop_view_updates_mul_clone": (
        "x = leaf(6); y = x * 1\nfor i in range(5): y[i + 1] = y[i + 1].clone() * y[i].clone()\n"
        "return [y, *back(y, x)]"
    ),
    "addmm_inplace": (
        "x = leaf(3, 4); w = leaf(4, 3); y = K.zeros(3, 3); y.addmm_(x, w); y.baddbmm if 0 else 0; "
        "return back(y, x, w)"
    ),
    "addcmul_": (
        "x = leaf(4); y = x * 1; y.addcmul_(x, x, value=2); y.addcdiv_(x, x + 9); y.lerp_(x, 0.5); "
        "return back(y, x)"
    ),
    "inplace_on_view_of_cat": "x = leaf(4); y = K.cat([x, x]); y[2:6].mul_(2); return back(y, x)",
    "stack_then_unbind_write": "x = leaf(4); y = K.stack([x, x * 2]); y[0].add_(y[1]); return back(y, x)",
    "expand_of_leaf_write": "x = leaf(1); y = x.expand(3); y.add_(1)",
    "expand_as_target_const": "x = leaf(1); y = K.zeros(1).expand(3); y.add_(x)",
    "inplace_requires_dtype": "x = leaf(4); y = x * 1; y.floor_(); return [y.grad_fn.name(), *back(y, x)]",
    "inplace_compare": "x = leaf(4); y = x * 1; y.gt_(0); return [y, y.requires_grad]",
    "inplace_sign": "x = leaf(4); y = x * 1; y.sign_(); return [y, y.requires_grad, *back(y, x)]",
    "inplace_random": "x = leaf(4); y = x * 1; y.uniform_(0, 0.0); return [y.requires_grad, *back(y, x)]",
    "inplace_random_view": (
        "x = leaf(4); y = x * 1; y[:2].uniform_(1, 1); y[2:].bernoulli_(1.0); "
        "return [y.requires_grad, *back(y, x)]"
    ),
    "normal_leaf": "x = leaf(4); x.normal_()",
    "leaf_fill": "x = leaf(4); x.fill_(0)",
    "leaf_index": "x = leaf(4); x.index_fill_(0, K.tensor([0]), 1.0)",
    "leaf_copy": "x = leaf(4); x.copy_(K.ones(4))",
    "inplace_view_of_saved_other_half": (
        "x = leaf(4); y = x * 1; a = y[:2] * y[:2]; y[2:].add_(1); return back(a, x)"
    ),
    "saved_view_base_written": (
        "x = leaf(4); y = x * 1; v = y.view(2, 2); a = v * v; y.add_(1); return back(a, x)"
    ),
    "save_after_write_same_expr": (
        "x = leaf(4); y = x * 1; a = y * y; y = y.add_(1) if False else y + 1; b = y * y; "
        "return back(a + b, x)"
    ),
    "t_of_requires_and_write_through": (
        "x = leaf(3, 4); y = (x * 1).t().contiguous(); y[0].mul_(2); return back(y, x)"
    ),
    "contiguous_same_write": (
        "x = leaf(3, 4); y = x * 1; z = y.contiguous(); z.mul_(2); return [y, *back(y, x)]"
    ),
    "view_as_self": (
        "x = leaf(3, 4); y = x * 1; z = y.view_as(y); z.mul_(2); "
        "return [y, z.grad_fn.name(), y.grad_fn.name(), *back(y, x)]"
    ),
    "to_same_write": (
        "x = leaf(3, 4); y = x * 1; z = y.to(K.float32); z.mul_(2); return [y is z, *back(y, x)]"
    ),
    "squeeze_noop_write": (
        "x = leaf(3, 4); y = x * 1; z = y.squeeze(); z.mul_(2); return [z._base is y, y, *back(y, x)]"
    ),
    "expand_noop_write": (
        "x = leaf(3, 4); y = x * 1; z = y.expand(3, 4); z.mul_(2); return [z._base is y, y, *back(y, x)]"
    ),
    "slice_full_write": (
        "x = leaf(3, 4); y = x * 1; z = y[:]; z.mul_(2); u = y[...]; u.mul_(2); "
        "return [z._base is y, y, *back(y, x)]"
    ),
    "view_0d": "x = leaf(); y = x * 1; y[()] = 3.0; y[...] *= 2; return [y, *back(y, x)]",
    "write_0d_item": "x = leaf(3); y = x * 1; y[1].add_(y[0]); y[2] = y[1]; return [y, *back(y, x)]",
    "zero_size_view": "x = leaf(3); y = x * 1; y[3:].mul_(2); y[:0] = 5; return [y, *back(y, x)]",
    "iadd_alias": "x = leaf(3); y = x * 1; z = y; z += 1; return [y is z, *back(y, x)]",
    "grad_fn_stable": (
        "x = leaf(3); y = x * 1; v = y[:2]; f = v.grad_fn; y.mul_(1); g = v.grad_fn; "
        "return [f == g, v.grad_fn == g]"
    ),
    "leaf_multi_view_nograd": (
        "x = leaf(4, 4); a, b = x.split(2)\nwith K.no_grad(): a.mul_(2)\nreturn [x, a.requires_grad]"
    ),
    "multi_view_nograd_then_gradfn": (
        "x = leaf(4, 4); y = x * 1; a, b = y.split(2)\nwith K.no_grad(): a.mul_(2)\nreturn [a.grad_fn.name()]"
    ),
    "multi_view_base_write_then_requires": (
        "x = leaf(4, 4); y = x * 1; a, b = y.split(2); y.mul_(2); return [a.requires_grad]"
    ),
    "multi_view_base_write_then_use": (
        "x = leaf(4, 4); y = x * 1; a, b = y.split(2); y.mul_(2); return [a * 2]"
    ),
    "multi_view_base_write_then_read_nograd": (
        "x = leaf(4, 4); y = x * 1; a, b = y.split(2); y.mul_(2)\nwith K.no_grad(): return [a * 2]\n"
    ),
    "multi_view_const_base_gets_history": (
        "x = const(4, 4); w = leaf(4, 4); a, b = x.split(2); x.mul_(w); "
        "return [a.requires_grad, a.grad_fn.name()]"
    ),
    "index_view_nograd_made_leaf": (
        "x = leaf(4, 4)\nwith K.no_grad(): v = x.view(16)\n"
        "return [v.requires_grad, v.is_leaf, (v * 2).requires_grad]"
    ),
    "clone_of_nograd_view": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y.view(16); u = v[:4]\nu2 = v[4:]; "
        "u2.mul_(2); return [u2.requires_grad]"
    ),
    "view_made_grad_of_nograd_view": (
        "x = leaf(4, 4); y = x * 1\nwith K.no_grad(): v = y.view(16)\nu2 = v[4:]; "
        "return [u2.requires_grad, u2._base is y]"
    ),
}
