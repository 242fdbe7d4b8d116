"""skorch: a network as scikit-learn's estimator, in a pipeline and a grid search."""

import pickle

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, EpochScoring, LRScheduler
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 6)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2), nn.Softmax(dim=-1))

    def forward(self, x):
        return self.layers(x)


net = NeuralNetClassifier(
    Net, max_epochs=25, batch_size=16, lr=0.1, optimizer=torch.optim.Adam, optimizer__lr=0.02, verbose=0,
    callbacks=[EpochScoring("roc_auc"), EarlyStopping(patience=10), LRScheduler("StepLR", step_size=20)],
)  # fmt: skip
pipe = Pipeline([("scale", StandardScaler()), ("net", net)])
pipe.fit(x, y)
assert pipe.score(x, y) > 0.9
again = pickle.loads(pickle.dumps(pipe))
assert np.array_equal(again.predict_proba(x), pipe.predict_proba(x))
search = GridSearchCV(
    NeuralNetClassifier(Net, max_epochs=3, verbose=0, train_split=False), {"lr": [0.01, 0.3]}, cv=2
)
search.fit(x, y)
assert search.best_params_["lr"] == 0.3
print("ok")
