"""Functions for traces: traps, which no trace may get silently wrong, and clean ones, which it must get
right.

Each is the body of `f(x, y)` for float32 arrays of shape [3, 4]; `i` is an int64 vector of 3 indices below 3.
"""

from __future__ import annotations

# what reads a value, or what a trace cannot see
TRAPS = """
return x if x.sum() > 0 else -x
return x * 2 if (x > 0).all() else x * 3
return x * x.max().item()
return x * float(x.sum())
return x[: int(i[0]) + 1]
return x[int(i.sum())  % 3]
return x * len(f"{x}")
return x * len(str(x))
return x * len(repr(x.sum()))
return x * id(x)
return x * (id(y) % 97)
return x + hash(x) % 1000003
d = {float(x.sum()): 1.0}; return x * list(d)[0]
return x * kiln.tensor(x.tolist()).sum()
return x * float(x.numpy().sum())
return x * float(np.asarray(x).sum())
return x * np.abs(x.numpy()).max()
for _ in range(int(x.abs().sum())): x = x + 1
while x.sum() < 100: x = x + 1
return x if bool(x.any()) else y
return x if not (x == y).all() else y
assert x.sum() > -1e9; return x if x[0, 0] > 0 else y
return x * random.random()
return x * random.randint(0, 1000)
return x + random.choice([1.0, 2.0, 3.0, 4.0])
random.shuffle(ORDER); return x[ORDER]
return x * np.random.rand()
return x + kiln.tensor(np.random.randn(3, 4)).float()
return x + kiln.tensor(np.random.default_rng().normal(size=4)).float()
return x * time.time()
return x * time.perf_counter()
return x * time.monotonic_ns()
return x + datetime.datetime.now().microsecond
COUNTER[0] += 1; return x * COUNTER[0]
STATE["n"] = STATE.get("n", 0) + 1; return x * STATE["n"]
GROWS.append(1); return x * len(GROWS)
return x * next(NUMBERS)
return x * float(os.urandom(4)[0] * 256 + os.urandom(4)[0])
return x * uuid.uuid4().int
return x * (id(object()) % 1009)
return x[x > 0]
return x[x > 0].sum()
return kiln.nonzero(x > 0)
return x.nonzero().shape[0] * x
return kiln.unique(i)
return kiln.masked_select(x, x > 0)
return kiln.where(x > 0)[0]
return x * kiln.unique(x).numel()
return x * min(x[0])
return x * max(float(v) for v in x[0])
return sorted([x.sum(), y.sum()])[0] * x
return x if x.sum() in (1, 2, 3) else y
return x * round(float(x.mean()), 2)
return x * math.floor(x.sum())
return x * math.sqrt(abs(x.sum()))
return x * math.exp(x[0, 0])
return x * int(x[0, 0])
return x * x[0, 0].tolist()
return x * bool(x[0, 0] > 0)
return x.sum() and x or y
return x.sum() or y
return (x.sum() > 0) and x * 2
return x * any(v > 0 for v in x[0])
return x * sum(1 for v in x[0] if v > 0)
return x * [v for v in (1.0, 2.0) if v > x.sum()][0]
return x.repeat(int(i[1]) + 1, 1)
return x.expand(int(i[0] + 1), 3, 4)
return kiln.zeros(int(i[2]) + 1) + x.sum()
return kiln.arange(i[2]) + x.sum()
return x.view(int(i.sum() * 0 + 3), -1)
return x.split([int(i[0]) + 1, 2 - int(i[0])])[0]
return kiln.repeat_interleave(x, i, dim=0)
return kiln.bincount(i) * 1.0
return x.index_select(0, i[i > 0])
x.requires_grad_(); return kiln.autograd.grad((x * y).sum(), x)[0]
z = x.detach().requires_grad_(); (z * y).sum().backward(); return z.grad
return x * (1.0 if x.equal(y) else 2.0)
return x * (1.0 if kiln.equal(x, y) else 2.0)
return x * (1.0 if kiln.allclose(x, y) else 2.0)
return x * {True: 1.0, False: 2.0}[bool(x[0, 0] > y[0, 0])]
return x if x.isnan().any() else y
return x * CONSTANT.item() if x.sum() > 0 else x
print(float(x.sum())); return x
return x * float("%.3f" % x.sum())
return x * float(f"{x.sum():.3f}")
return x * float(format(x.sum(), ".3f"))
return x * int(kiln.argmax(x))
return y[kiln.argmax(x).item() % 3]
return x * complex(x.sum()).real
return x * operator.index(i[1])
return [x, y, x + y][i[1]]
return [x, y, x + y][int(i[0])]
return x * len(range(i[1]))
return x * (x.sum() ** 2 > 4).item()
return pickle.loads(pickle.dumps(x)) * 1.0
return x * len(pickle.dumps(x.tolist()))
return x * float(copy.copy(x).sum())
return x + np.array(x)
return x * np.float32(x.sum())
return x * statistics.mean([float(v) for v in x[0]])
x.data_ptr(); return x * (x.data_ptr() % 1000003)
return x * (3 if x.sum() == y.sum() else 4)
return x * (3 if x[0, 0] != y[0, 0] else 4)
return x * (3 if 0 < x[0, 0] < 1 else 4)
return x * (3 if x[0, 0] <= y[0, 0] else 4)
try: return x * float(x.sum())
match bool(x.sum() > 0): {case}
s = set(x[0].tolist()); return x * len(s)
return x * kiln.count_nonzero(x).item()
return x.tolist()
return float(x.sum())
return x, x.sum().item()
return x * int("".join(map(str, i.tolist())))
""".strip().split("\n")

# what is computed with tensors alone
CLEAN = """
return x + y
return x * 2 - y / 3
return kiln.where(x > 0, x, y)
return x @ y.T
return (x @ y.mT).softmax(-1)
return x.sum(), x.mean(0), x.max(1).values
return {"a": x.relu(), "b": [y.tanh(), (x.exp(), 3, None)]}
z = x.clone(); z[0] = 1.0; return z
z = x.clone(); z[:, 1] += y[:, 2]; return z
z = kiln.zeros(3, 4); z[1] = x[0]; z[2].add_(y[1]); return z
z = x.clone(); z[x > 0] = 0.0; return z
z = x.clone(); z.mul_(2).add_(y); return z
for k in range(3): x = x + y * k
if x.ndim == 2 and x.shape[0] == 3: x = x.reshape(4, 3)
if x.dtype == kiln.float32: x = x.double()
return [row.sum() for row in x]
a, b = x.chunk(2, 1); return a * b
a, b, c = x; return a + b * c
return kiln.cat([x, y]), kiln.stack([x, y], 1)
return x[i], x[i, i], x.gather(1, i.reshape(3, 1))
return F.layer_norm(x, (4,)), F.gelu(x)
return F.cross_entropy(x, i)
return F.linear(x, y, None), F.linear(x, y, y[:, 0])
return F.scaled_dot_product_attention(x[None], y[None], x[None])
return F.pad(x, (1, 2)), F.one_hot(i, 4)
return x.view(-1), x.flatten(), x.unsqueeze(0).squeeze(0)
return x.T.contiguous(), x.permute(1, 0), x.transpose(0, 1).reshape(-1)
return kiln.einsum("ij,kj->ik", x, y)
return x.to(kiln.float64) + 1, x.half().float(), x.long()
return x.detach() * y, (x * y).detach()
return kiln.rand(3, 4) + x
return F.dropout(x, 0.5), kiln.randn(2), kiln.randperm(5)
return kiln.bernoulli(x.sigmoid()), kiln.rand_like(x)
return kiln.arange(4) * x, kiln.eye(3) @ x, kiln.full((4,), 2.0) + x
return x + kiln.tensor([1.0, 2.0, 3.0, 4.0])
return x + CONSTANT, CONSTANT * 2
return x * SCALE, x + len([1, 2, 3])
return isinstance(x, kiln.Tensor), x.numel() * x.size(1) + len(x)
return x.topk(2).indices, x.sort(1).values, x.argsort()
return x.cumsum(0), x.cumprod(1), kiln.tril(x), x.var(1)
return kiln.clamp(x, -1, 1), x.clamp(min=0), x.masked_fill(x > 0, 2.0)
return (x > y) & (x < 1), ~(x > 0), x.any(), x.all(1)
with kiln.no_grad(): z = x * 2
return kiln.outer(x[0], y[1]), x.diagonal(), x.std(0), x.trace()
return x.norm(), kiln.linalg.norm(x, dim=1), F.normalize(x)
return x.unfold(1, 2, 1), x.roll(1, 0), x.flip(0), x.repeat(2, 1)
return x, y, x
return ((x, y), [x]), {}
return np.float32(2.0) * x, x ** 2, 2 ** x, -x, abs(x)
return F.conv1d(x[None], y[None, :, :3].transpose(0, 1)[:, :1].expand(3, 3, 3))
z = x.clone(); w = z[0]; w.mul_(3); return z, w
z = x.clone(); w = z.view(-1); w[0] = 5.0; z[1, 1] = 6.0; return w, z
return kiln.logsumexp(x, 1), F.log_softmax(x, 1), x.prod(1)
""".strip().split("\n")
