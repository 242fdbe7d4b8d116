"""Programs as PyTorch's users write them, on whichever of the two frameworks they are given.

A program takes the framework and a NumPy generator that its data come from; it returns what it computed.
"""

from __future__ import annotations

import copy
import math


def normal(torch, rng, *shape, dtype="float32"):
    return torch.tensor(rng.standard_normal(shape).astype(dtype))


def gat(torch, rng):
    F = torch.nn.functional
    n, heads, d = 5, 2, 3
    src = torch.tensor([0, 1, 2, 3, 4, 0, 2])
    dst = torch.tensor([1, 2, 3, 4, 0, 2, 0])
    x = normal(torch, rng, n, heads, d).requires_grad_()
    a = normal(torch, rng, heads, 2 * d).requires_grad_()
    e = F.leaky_relu((torch.cat([x[src], x[dst]], -1) * a).sum(-1), 0.2)
    m = torch.full((n, heads), float("-inf")).scatter_reduce(
        0, dst[:, None].expand(-1, heads), e.detach(), reduce="amax"
    )
    ex = (e - m[dst]).exp()
    z = torch.zeros(n, heads).index_add_(0, dst, ex)
    alpha = ex / (z[dst] + 1e-16)
    out = torch.zeros_like(x).index_add_(0, dst, alpha[..., None] * x[src])
    out = F.elu(out).flatten(1)
    g = torch.autograd.grad(out.sum(), [x, a])
    return [out, alpha, *g]


def masked_attention(torch, rng):
    q, k, v = (normal(torch, rng, 2, 3, 5, 4).requires_grad_() for _ in range(3))
    lengths = torch.tensor([3, 5])
    pad = torch.arange(5)[None, :] >= lengths[:, None]
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    s = s.masked_fill(pad[:, None, None, :] | causal, float("-inf"))
    p = s.softmax(dim=-1)
    o = torch.einsum("bhij,bhjd->bhid", p, v)
    o = o.transpose(1, 2).reshape(2, 5, -1)
    o.pow(2).mean().backward()
    return [o, p, q.grad, k.grad, v.grad]


def ctc_loop(torch, rng):
    Tn, C = 6, 4
    logits = normal(torch, rng, Tn, C).requires_grad_()
    lp = torch.log_softmax(logits, 1)
    target = [1, 2, 2]
    ext = [0]
    for t in target:
        ext += [t, 0]
    ext = torch.tensor(ext)
    S = len(ext)
    neg = torch.tensor(-1e30)
    alpha = torch.stack([lp[0, ext[0]], lp[0, ext[1]]] + [neg] * (S - 2))
    skip = torch.zeros(S, dtype=torch.bool)
    skip[2:] = (ext[2:] != 0) & (ext[2:] != ext[:-2])
    for t in range(1, Tn):
        a1 = torch.cat([neg[None], alpha[:-1]])
        a2 = torch.where(skip, torch.cat([neg.expand(2), alpha[:-2]]), neg)
        alpha = torch.logsumexp(torch.stack([alpha, a1, a2]), dim=0) + lp[t].gather(0, ext)
    loss = -torch.logaddexp(alpha[-1], alpha[-2])
    loss.backward()
    return [loss, logits.grad]


def viterbi_crf(torch, rng):
    Tn, K = 6, 4
    em = normal(torch, rng, Tn, K).requires_grad_()
    tr = normal(torch, rng, K, K).requires_grad_()
    tags = torch.tensor([0, 1, 2, 1, 3, 0])
    alpha = em[0]
    for t in range(1, Tn):
        alpha = torch.logsumexp(alpha.unsqueeze(1) + tr + em[t].unsqueeze(0), dim=0)
    gold = em[torch.arange(Tn), tags].sum() + tr[tags[:-1], tags[1:]].sum()
    nll = alpha.logsumexp(0) - gold
    nll.backward()
    with torch.no_grad():
        v, back = em[0], []
        for t in range(1, Tn):
            v, b = (v[:, None] + tr).max(dim=0)
            v = v + em[t]
            back.append(b)
        best = int(v.argmax())
        path = [best]
        for b in reversed(back):
            best = b[best].item()
            path.append(best)
    return [nll, em.grad, tr.grad, torch.tensor(path[::-1])]


def skipgram(torch, rng):
    nn, F = torch.nn, torch.nn.functional
    V, D = 10, 4
    inp, out = nn.Embedding(V, D), nn.Embedding(V, D)
    inp.weight.data.copy_(normal(torch, rng, V, D))
    out.weight.data.copy_(normal(torch, rng, V, D))
    opt = torch.optim.SGD(list(inp.parameters()) + list(out.parameters()), lr=0.1)
    losses = []
    for _ in range(4):
        c = torch.tensor(rng.integers(0, V, 8))
        p = torch.tensor(rng.integers(0, V, 8))
        n = torch.tensor(rng.integers(0, V, (8, 3)))
        u = inp(c)
        pos = F.logsigmoid((u * out(p)).sum(1))
        neg = F.logsigmoid(-torch.bmm(out(n), u.unsqueeze(2)).squeeze(2)).sum(1)
        loss = -(pos + neg).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return [torch.tensor(losses), inp.weight, out.weight]


def kmeans(torch, rng):
    x = normal(torch, rng, 30, 2)
    c = x[:3].clone()
    for _ in range(5):
        a = torch.cdist(x, c).argmin(dim=1)
        c = torch.stack([x[a == k].mean(0) for k in range(3)])
    counts = torch.bincount(a, minlength=3)
    inertia = (x - c[a]).square().sum()
    return [c, counts, inertia]


def gaussian_process(torch, rng):
    x = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(6 * x).squeeze()
    xs = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    logl = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    logs = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True)

    def k(a, b):
        return torch.exp(-0.5 * torch.cdist(a, b).pow(2) / logl.exp() ** 2)

    K = k(x, x) + logs.exp() * torch.eye(8, dtype=torch.float64)
    L = torch.linalg.cholesky(K)
    alpha = torch.cholesky_solve(y.unsqueeze(1), L)
    mll = -0.5 * y @ alpha.squeeze(1) - L.diagonal().log().sum() - 4 * math.log(2 * math.pi)
    (-mll).backward()
    with torch.no_grad():
        v = torch.linalg.solve_triangular(L, k(x, xs), upper=False)
        mean = k(xs, x) @ alpha
        cov = k(xs, xs) - v.T @ v
    return [mll, logl.grad, logs.grad, mean, cov.diag()]


def kalman(torch, rng):
    F_ = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    H = torch.tensor([[1.0, 0.0]])
    Q, R = 0.01 * torch.eye(2), torch.tensor([[0.5]])
    x, P = torch.zeros(2, 1), torch.eye(2)
    zs = torch.cumsum(torch.ones(8), 0) + 0.1 * normal(torch, rng, 8)
    out = []
    for z in zs:
        x, P = F_ @ x, F_ @ P @ F_.T + Q
        S = H @ P @ H.T + R
        K = P @ H.mT @ torch.inverse(S)
        x = x + K @ (z.view(1, 1) - H @ x)
        P = (torch.eye(2) - K @ H) @ P
        out.append(x.squeeze())
    return [torch.stack(out), P]


def hmc(torch, rng):
    A = torch.tensor([[2.0, 0.5], [0.5, 1.0]])

    def U(q):
        return 0.5 * q @ A @ q

    q = torch.tensor([1.0, -1.0])
    chain = []
    for _i in range(4):
        p = normal(torch, rng, 2)
        u = float(rng.random())
        qn = q.clone().requires_grad_(True)
        pn = p
        (g,) = torch.autograd.grad(U(qn), qn)
        for _ in range(3):
            pn = pn - 0.05 * g
            qn = (qn + 0.1 * pn).detach().requires_grad_()
            g = torch.autograd.grad(U(qn), qn)[0]
            pn = pn - 0.05 * g
        dH = U(q) + 0.5 * p.dot(p) - U(qn) - 0.5 * pn.dot(pn)
        if math.log(u) < dH.item():
            q = qn.detach()
        chain.append(q)
    return [
        torch.stack(chain),
        torch.stack(chain).mean(0),
        torch.var(torch.stack(chain), dim=0, correction=0),
    ]


def pinn(torch, rng):
    nn = torch.nn
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(normal(torch, rng, *p.shape, dtype="float64"))
    x = torch.rand(10, 1, dtype=torch.float64) * 0 + torch.linspace(-1, 1, 10, dtype=torch.float64).view(
        -1, 1
    )
    t = torch.linspace(0, 1, 10, dtype=torch.float64).view(-1, 1)
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = net(torch.cat([x, t], dim=1))
    ux, ut = torch.autograd.grad(u, (x, t), grad_outputs=torch.ones_like(u), create_graph=True)
    uxx = torch.autograd.grad(ux, x, torch.ones_like(ux), create_graph=True)[0]
    res = ut + u * ux - 0.01 / math.pi * uxx
    loss = torch.mean(res**2)
    loss.backward()
    return [res, loss] + [p.grad for p in net.parameters() if p.grad is not None]


def fill(torch, rng, m, s=0.3):
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(normal(torch, rng, *p.shape) * s)
    return m


def diffusion(torch, rng):
    Tn = 10
    betas = torch.linspace(1e-4, 0.02, Tn)
    alphas = 1.0 - betas
    ac = torch.cumprod(alphas, dim=0)
    prev = torch.nn.functional.pad(ac[:-1], (1, 0), value=1.0)
    x0, eps = normal(torch, rng, 2, 3, 4, 4), normal(torch, rng, 2, 3, 4, 4)
    t = torch.tensor([3, 7])

    def ext(a, t):
        return a.gather(-1, t).reshape(t.shape[0], *((1,) * 3))

    xt = ext(ac.sqrt(), t) * x0 + ext((1 - ac).sqrt(), t) * eps
    post = betas * (1.0 - prev) / (1.0 - ac)
    rec = (xt - ext((1 - ac) ** 0.5, t) * eps) * torch.rsqrt(ext(ac, t))
    half = 4
    emb = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    emb = t[:, None] * emb[None, :]
    emb = torch.cat((emb.sin(), emb.cos()), dim=-1)
    return [xt, post, (rec - x0).abs().max() < 1e-4, emb, torch.clamp(rec, -1.0, 1.0)]


def dqn(torch, rng):
    nn, F = torch.nn, torch.nn.functional
    q = fill(torch, rng, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))

    tgt = copy.deepcopy(q)
    for p in tgt.parameters():
        p.requires_grad = False
    s, s2 = normal(torch, rng, 6, 4), normal(torch, rng, 6, 4)
    a, r = torch.tensor(rng.integers(0, 2, 6)), normal(torch, rng, 6)
    done = torch.tensor([0, 0, 1, 0, 1, 0], dtype=torch.bool)
    opt = torch.optim.AdamW(q.parameters(), lr=1e-2, amsgrad=True)
    for _ in range(3):
        qa = q(s).gather(1, a.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            y = r + 0.99 * tgt(s2).max(1).values * (~done)
        loss = F.smooth_l1_loss(qa, y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(q.parameters(), 100)
        opt.step()
        for tp, p in zip(tgt.parameters(), q.parameters()):
            tp.data.mul_(0.99).add_(0.01 * p.data)
    return [loss, qa, y, q(s).argmax(-1), tgt[0].weight]


def moe(torch, rng):
    F = torch.nn.functional
    x = normal(torch, rng, 8, 4).requires_grad_()
    gate = normal(torch, rng, 4, 3).requires_grad_()
    Ws = normal(torch, rng, 3, 4, 4).requires_grad_()
    w, idx = torch.topk(F.softmax(x @ gate, dim=-1, dtype=torch.float), 2, dim=-1)
    w = w / w.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(x)
    mask = F.one_hot(idx, num_classes=3).permute(2, 1, 0)
    for e in range(3):
        k, tok = torch.where(mask[e])
        if tok.numel() == 0:
            continue
        out.index_add_(0, tok, (x[None, tok].reshape(-1, 4) @ Ws[e]) * w[tok, k, None])
    load = mask.float().mean(dim=(1, 2))
    aux = (load * (x @ gate).softmax(-1).mean(0)).sum() * 3
    (out.sum() + aux).backward()
    return [out, load, x.grad, gate.grad, Ws.grad]


def kv_cache(torch, rng):
    B, H, D, L = 1, 2, 4, 5
    Wq, Wk, Wv = (normal(torch, rng, 8, 8) for _ in range(3))
    x = normal(torch, rng, B, L, 8)
    kc, vc = torch.zeros(B, H, L, D), torch.empty(B, H, L, D).fill_(0)
    outs = []
    with torch.no_grad():
        for t in range(L):
            xt = x[:, t : t + 1]
            q, k, v = [(xt @ W).view(B, 1, H, D).transpose(1, 2) for W in (Wq, Wk, Wv)]
            kc[:, :, t : t + 1], vc[:, :, t] = k, v.squeeze(2)
            a = torch.softmax(q @ kc[:, :, : t + 1].transpose(2, 3) * D**-0.5, -1)
            outs.append((a @ vc[:, :, : t + 1]).transpose(1, 2).contiguous().view(B, 1, -1))
        inc = torch.cat(outs, 1)
        q, k, v = [(x @ W).view(B, L, H, D).transpose(1, 2) for W in (Wq, Wk, Wv)]
        s = (q @ k.mT * D**-0.5).masked_fill(~torch.ones(L, L).tril().bool(), -torch.inf)
        full = (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return [inc, torch.allclose(inc, full, atol=1e-5)]


def rotary(torch, rng):
    d, L = 8, 6
    inv = 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d))
    fr = torch.outer(torch.arange(L, dtype=torch.float32), inv)
    emb = torch.cat((fr, fr), dim=-1)
    cos, sin = emb.cos()[None, None], emb.sin()[None, None]
    q = normal(torch, rng, 1, 2, L, d).requires_grad_()

    def rot(x):
        x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-x2, x1), dim=-1)

    y = q * cos + rot(q) * sin
    inter = torch.stack(
        (q[..., ::2] * fr.cos() - q[..., 1::2] * fr.sin(), q[..., 1::2] * fr.cos() + q[..., ::2] * fr.sin()),
        dim=-1,
    ).flatten(-2)
    (y * inter).sum().backward()
    return [y, inter, q.grad]


def simclr(torch, rng):
    F = torch.nn.functional
    z1, z2 = normal(torch, rng, 4, 6).requires_grad_(), normal(torch, rng, 4, 6).requires_grad_()
    z = F.normalize(torch.cat([z1, z2], dim=0), dim=1)
    sim = z @ z.t() / 0.5
    sim.fill_diagonal_(float("-inf"))
    n = 4
    lab = torch.cat([torch.arange(n) + n, torch.arange(n)])
    loss = F.cross_entropy(sim, lab)
    cs = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2)
    mask = torch.eye(8).bool()
    cs = cs[~mask].view(8, -1)
    pos = torch.cat([torch.diag(z @ z.T, n), torch.diag(z @ z.T, -n)])
    loss2 = (-torch.log(torch.exp(pos / 0.5) / torch.exp(cs / 0.5).sum(1))).mean()
    loss.backward()
    return [loss, loss2, z1.grad, z2.grad]


def metrics(torch, rng):
    C = 3
    pred, tgt = torch.tensor(rng.integers(0, C, 40)), torch.tensor(rng.integers(0, C, 40))
    cm = torch.bincount(tgt * C + pred, minlength=C**2).reshape(C, C)
    tp = cm.diag()
    prec = tp / cm.sum(0).clamp(min=1)
    rec = tp / cm.sum(1)
    f1 = torch.nan_to_num(2 * prec * rec / (prec + rec))
    s = torch.tensor(rng.random(40))
    y = torch.tensor(rng.integers(0, 2, 40))
    o = torch.argsort(s, descending=True)
    tps, fps = torch.cumsum(y[o], 0), torch.cumsum(1 - y[o], 0)
    tpr, fpr = tps / tps[-1], fps / fps[-1]
    auc = torch.trapezoid(torch.cat([torch.zeros(1), tpr]), torch.cat([torch.zeros(1), fpr]))
    pr = tps / (tps + fps)
    ap = (pr * y[o]).sum() / y.sum()
    iou = tp / (cm.sum(0) + cm.sum(1) - tp)
    kappa = (tp.sum() / 40 - (cm.sum(0) * cm.sum(1)).sum() / 1600) / (
        1 - (cm.sum(0) * cm.sum(1)).sum() / 1600
    )
    logits = torch.tensor(rng.random((40, C)))
    _, top2 = logits.topk(2, 1, True, True)
    correct = top2.t().eq(tgt.view(1, -1).expand_as(top2.t()))
    acc2 = correct[:2].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / 40)
    return [cm, prec, rec, f1, auc, ap, iou, kappa, acc2]


def box_iou(torch, a, b):
    def area(x):
        return (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])

    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (area(a)[:, None] + area(b) - inter)


def nms(torch, rng):
    xy = torch.tensor(rng.random((12, 2)).astype("float32"))
    wh = 0.3 + 0.3 * torch.tensor(rng.random((12, 2)).astype("float32"))
    boxes, scores = torch.cat([xy, xy + wh], -1), torch.tensor(rng.random(12).astype("float32"))
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0]
        keep.append(i.item())
        if order.numel() == 1:
            break
        iou = box_iou(torch, boxes[i].unsqueeze(0), boxes[order[1:]]).squeeze(0)
        order = order[1:][iou <= 0.5]
    cxcywh = torch.stack(
        ((boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2, *wh.unbind(-1)), dim=-1
    )
    v, i = box_iou(torch, boxes, boxes[keep]).max(dim=1)
    return [torch.tensor(keep), cxcywh, v, i]


def image_ops(torch, rng):
    F = torch.nn.functional
    x = normal(torch, rng, 1, 1, 6, 6)
    p = F.pad(x, (1, 1, 1, 1), mode="reflect")
    w = p.unfold(2, 3, 1).unfold(3, 3, 1)
    blur = w.mean(dim=(-1, -2))
    med = w.reshape(1, 1, 6, 6, 9).median(dim=-1).values
    sob = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    gx = torch.einsum("bchwij,ij->bchw", w, sob)
    gy = torch.einsum("bchwij,ij->bchw", w, sob.t())
    mag = torch.hypot(gx, gy)
    ang = torch.atan2(gy, gx)
    ero = w.amin((-1, -2))
    dil = w.amax(dim=(-2, -1))
    fl = torch.flip(x, dims=[-1])
    r90 = torch.rot90(x, 1, [2, 3])
    ro = torch.roll(x, shifts=(1, -1), dims=(2, 3))
    patches = (
        x.unfold(2, 2, 2).unfold(3, 2, 2).contiguous().view(1, 1, -1, 2, 2).permute(0, 2, 1, 3, 4).flatten(2)
    )
    up = x.repeat_interleave(2, dim=-1).repeat_interleave(2, -2)
    ps = F.pixel_shuffle(x.expand(1, 4, 6, 6), 2)
    circ = F.pad(x, (2, 2, 0, 0), "circular")
    rep = F.pad(x, [0, 1, 2, 0], mode="replicate")
    u8 = (x.sigmoid() * 255).clamp(0, 255).to(torch.uint8)
    hist = torch.histc(x, bins=8, min=-2, max=2)
    norm = x.sub(torch.tensor([0.5])[None, :, None, None]).div_(0.2)
    crop = x[:, :, 1:5, 1:5]
    hwc = x.squeeze(0).permute(1, 2, 0).numpy()
    return [blur, med, mag, ang, ero, dil, fl, r90, ro, patches, up, ps, circ, rep, u8, hist, norm, crop, hwc]


def lstm_hand(torch, rng):
    x = normal(torch, rng, 3, 2, 4)
    Wi, Wh, b = (
        normal(torch, rng, 12, 4).requires_grad_(),
        normal(torch, rng, 12, 3).requires_grad_(),
        torch.zeros(12, requires_grad=True),
    )
    h = c = x.new_zeros(2, 3)
    hs = []
    for xt in x:
        g = torch.addmm(b, xt, Wi.t()) + h.mm(Wh.t())
        i, f, gg, o = g.chunk(4, 1)
        c = torch.sigmoid(f) * c + i.sigmoid() * torch.tanh(gg)
        h = o.sigmoid() * c.tanh()
        hs.append(h)
    Wr = normal(torch, rng, 9, 3).requires_grad_()
    gru = torch.zeros(2, 3)
    for xt in x.unbind(0):
        gx, gh = torch.nn.functional.linear(xt, Wi[:9]), torch.nn.functional.linear(gru, Wr)
        r, z = (gx[:, :6] + gh[:, :6]).sigmoid().split([3, 3], dim=1)
        n = torch.tanh(gx[:, 6:] + r * gh[:, 6:])
        gru = torch.lerp(n, gru, z)
    (torch.stack(hs).mean() + gru.sum()).backward()
    return [torch.stack(hs, dim=1), gru, Wi.grad, Wh.grad, b.grad, Wr.grad]


def bpe_stats(torch, rng):
    ids = torch.tensor(rng.integers(0, 4, 40))
    pairs = torch.stack([ids[:-1], ids[1:]], dim=1)
    u, inv, cnt = torch.unique(pairs, dim=0, return_inverse=True, return_counts=True)
    best = u[cnt.argmax()]
    hit = (pairs == best).all(dim=1)
    runs, rc = torch.unique_consecutive(ids, return_counts=True)
    code = pairs[:, 0] * 4 + pairs[:, 1]
    c2 = torch.bincount(code, minlength=16)
    return [u, inv, cnt, best, hit.sum(), runs, rc, c2, torch.isin(ids, best)]


def custom_function(torch, rng):
    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, i):
            r = i * torch.sigmoid(i)
            ctx.save_for_backward(i)
            return r

        @staticmethod
        def backward(ctx, g):
            (i,) = ctx.saved_tensors
            s = torch.sigmoid(i)
            return g * (s * (1 + i * (1 - s)))

    class STE(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.scale = scale
            return torch.sign(x) * scale

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-1, 1), None

    class GRL(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g.neg() * ctx.alpha, None

    x = normal(torch, rng, 5).requires_grad_()
    y = Swish.apply(x).sum() + (STE.apply(x, 2.0) * torch.arange(5.0)).sum() + GRL.apply(x, 0.3).pow(2).sum()
    y.backward()
    q = x + (x.round() - x).detach()
    g2 = torch.autograd.grad((q * q).sum(), x)[0]
    return [y, x.grad, g2]


def maml(torch, rng):
    W, b = normal(torch, rng, 3, 1).requires_grad_(), torch.zeros(1, requires_grad=True)
    meta = torch.optim.Adam([W, b], lr=0.01)
    for _ in range(2):
        meta.zero_grad()
        tot = 0.0
        for _task in range(2):
            x, y = normal(torch, rng, 4, 3), normal(torch, rng, 4, 1)
            fast = [W, b]
            for _ in range(2):
                inner = ((x @ fast[0] + fast[1] - y) ** 2).mean()
                gs = torch.autograd.grad(inner, fast, create_graph=True)
                fast = [p - 0.1 * g for p, g in zip(fast, gs)]
            xq, yq = normal(torch, rng, 4, 3), normal(torch, rng, 4, 1)
            tot = tot + torch.nn.functional.mse_loss(xq @ fast[0] + fast[1], yq)
        tot.backward()
        meta.step()
    return [W, b, W.grad, tot]


def seq2seq_attention(torch, rng):
    enc = normal(torch, rng, 2, 5, 4)
    h = normal(torch, rng, 2, 4)
    Wa = normal(torch, rng, 4, 4)
    va = normal(torch, rng, 4)
    lens = torch.tensor([5, 3])
    e = torch.tanh(enc @ Wa + h[:, None]) @ va
    mask = torch.arange(enc.size(1), device=enc.device).expand(len(lens), -1) < lens.unsqueeze(1)
    e = e.masked_fill(mask == 0, -1e10)
    a = torch.nn.functional.softmax(e, dim=1)
    c = torch.bmm(a.unsqueeze(1), enc).squeeze(1)
    return [a, c]


def quantization(torch, rng):
    w = normal(torch, rng, 4, 8)
    s = w.abs().amax(dim=1, keepdim=True) / 127
    q = torch.clamp(torch.round(w / s), -128, 127).to(torch.int8)
    dq = q.float() * s
    packed = (q[:, ::2].to(torch.int32) & 0xF) | ((q[:, 1::2].to(torch.int32) & 0xF) << 4)
    lo = packed & 0xF
    lo = torch.where(lo > 7, lo - 16, lo)
    bits = (q.to(torch.uint8).unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
    acc = q.to(torch.int32) @ q.t().to(torch.int32)
    return [q, dq, packed, lo, bits, acc, w.half().float(), w.bfloat16().float()]
