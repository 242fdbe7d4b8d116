"""Graph networks of several kinds on the karate club, and batches of graphs."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    SAGEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import add_self_loops, degree, to_dense_adj, to_undirected

torch.manual_seed(0)
# Zachary's club: who met whom, and which side each took
FRIENDS = [
    (0, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31]),
    (1, [2, 3, 7, 13, 17, 19, 21, 30]),
    (2, [3, 7, 8, 9, 13, 27, 28, 32]),
    (3, [7, 12, 13]), (4, [6, 10]), (5, [6, 10, 16]), (6, [16]), (8, [30, 32, 33]), (9, [33]), (13, [33]),
    (14, [32, 33]), (15, [32, 33]), (18, [32, 33]), (19, [33]), (20, [32, 33]), (22, [32, 33]),
    (23, [25, 27, 29, 32, 33]), (24, [25, 27, 31]), (25, [31]), (26, [29, 33]), (27, [33]), (28, [31, 33]),
    (29, [32, 33]), (30, [32, 33]), (31, [32, 33]), (32, [33]),
]  # fmt: skip
SECOND = {9, 14, 15, 18, 20, *range(22, 34)} | {8}

edges = torch.tensor([(a, b) for a, others in FRIENDS for b in others]).t().contiguous()
edges = to_undirected(edges)
assert edges.shape == (2, 156)
sides = torch.tensor([int(n in SECOND) for n in range(34)])
known = torch.zeros(34, dtype=torch.bool)
known[[0, 1, 32, 33]] = True
data = Data(x=torch.eye(34), edge_index=edges, y=sides, train_mask=known)
assert data.num_nodes == 34 and data.is_undirected() and not data.has_self_loops()
assert degree(edges[0], 34).max() == 17
assert to_dense_adj(edges).sum() == 156 and add_self_loops(edges)[0].shape[1] == 190


class Net(torch.nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.first = kind(34, 8, **options)
        self.second = kind(8, 2, **options)

    def forward(self, x, edge_index):
        return self.second(F.elu(self.first(x, edge_index)), edge_index)


def gin(fan_in, fan_out):
    return GINConv(torch.nn.Sequential(torch.nn.Linear(fan_in, fan_out)))


for kind in (GCNConv, GATConv, SAGEConv, gin):
    model = Net(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
    right = (model(data.x, data.edge_index).argmax(1) == data.y).float().mean()
    assert right > 0.8, (kind, right)

graphs = [
    Data(x=torch.randn(n, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([n % 2]))
    for n in range(3, 9)
]
(batch, second) = DataLoader(graphs, batch_size=4)
assert batch.num_graphs == 4 and batch.ptr.tolist() == [0, 3, 7, 12, 18] and second.num_graphs == 2
assert torch.equal(Batch.from_data_list(graphs[:4]).edge_index, batch.edge_index)
for pool in (global_mean_pool, global_add_pool, global_max_pool):
    assert pool(batch.x, batch.batch).shape == (4, 3)
torch.testing.assert_close(global_mean_pool(batch.x, batch.batch)[1], graphs[1].x.mean(0))
assert torch.equal(batch.to_data_list()[2].x, graphs[2].x)
print("ok")
