"""Handwritten digits with a small NumPy network: elastic, interruptible, the same result at any number of workers.

``python ray_jobs/train_digits.py`` runs it here; with MOORAGE_URL set it submits itself; under a lease it is what
`GpuTrainOperator` starts. ``--data`` names an npz file with x, y, x_test, y_test (images scaled to 0..1).
"""

import argparse

import numpy as np

from moorage.ray import ElasticTrainer, Job


def load(path):
    """The four arrays, from an npz file or from scikit-learn."""
    if path:
        with np.load(path, allow_pickle=False) as data:
            return data["x"], data["y"], data["x_test"], data["y_test"]
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order] / 16, digits.target[order]
    return x[:1500], y[:1500], x[1500:], y[1500:]


def fresh(seed):
    """Weights of a 64-64-10 network, and the momentum of each."""
    rng = np.random.default_rng(seed)
    w = {"w1": rng.normal(0, 0.18, (64, 64)), "b1": np.zeros(64)}
    w |= {"w2": rng.normal(0, 0.18, (64, 10)), "b2": np.zeros(10)}
    return {"weights": w, "momentum": {name: np.zeros_like(value) for name, value in w.items()}, "loss": None}


def forward(w, x):
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    logits = hidden @ w["w2"] + w["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def gradients(w, x, y):
    """Mean loss and mean gradients over the samples given."""
    hidden, p = forward(w, x)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y] + 1e-12).mean()
    p[rows, y] -= 1
    p /= len(y)
    back = (p @ w["w2"].T) * (hidden > 0)
    return loss, {"w1": x.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ p, "b2": p.sum(axis=0)}


def train_loop(config: dict, job: Job) -> dict:
    x, y, x_test, y_test = load(config["data"])
    state = job.restore() or fresh(config["seed"])
    weights, momentum = state["weights"], state["momentum"]
    steps = -(-len(x) * config["epochs"] // job.global_batch)

    def accuracy():
        return float((forward(weights, x_test)[1].argmax(axis=1) == y_test).mean())

    for batch in job.batches(len(x), epochs=config["epochs"], seed=config["seed"]):
        local = gradients(weights, x[batch.local], y[batch.local])
        loss, grads = job.all_reduce(local, weight=batch.weight)
        rate = config["rate"] * 0.5 * (1 + np.cos(np.pi * job.steps / steps))
        for name in weights:
            momentum[name] = 0.9 * momentum[name] + grads[name]
            weights[name] = weights[name] - rate * momentum[name]
        state["loss"] = loss
        job.step(loss=loss, metrics=lambda: {"accuracy": accuracy()}, state=lambda: state)
    model = job.publish("model.npz", weights)
    return {"accuracy": accuracy(), "loss": state["loss"], "steps": job.steps, "model": model}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="npz file; default: scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=45, help="45 are about 1000 steps")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs=2, default=(1, 4), metavar=("MIN", "MAX"))
    parser.add_argument("--storage", help="where checkpoints go, default: the lease's")
    options = parser.parse_args()
    config = {"data": options.data, "epochs": options.epochs, "rate": options.rate, "seed": options.seed}
    trainer = ElasticTrainer(
        train_loop, config=config, workers=tuple(options.workers), global_batch=options.batch, storage=options.storage
    )
    print(trainer.fit().metrics)  # noqa: T201
