"""FedJAX: its own FedAvg on an in-memory federated data set, batches compiled once."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

if not hasattr(jax, "tree_map"):  # FedJAX and Haiku still call it by its old name
    jax.tree_map = jax.tree.map

import fedjax
from fedjax.algorithms import fed_avg
from work import BATCH, LR, SEED, Clock, chosen, clients_of, cohorts


def forward(model: str, batch: dict[str, jnp.ndarray]) -> jnp.ndarray:
    """The same networks as everybody's, channels last."""
    if model == "mlp":
        return hk.nets.MLP([200, 200, 10])(batch["x"].reshape(len(batch["x"]), -1))
    x = jnp.moveaxis(batch["x"], 1, -1)
    for channels in (32, 64):
        x = hk.max_pool(jax.nn.relu(hk.Conv2D(channels, 5, padding="SAME")(x)), (2, 2, 1), (2, 2, 1), "VALID")
    return hk.nets.MLP([512, 10])(x.reshape(len(x), -1))


def main() -> None:
    """Print the seconds of every round."""
    work, clock = chosen(), Clock()
    data = fedjax.InMemoryFederatedData({str(number): {"x": x, "y": y} for number, (x, y) in enumerate(clients_of(work))})
    net = hk.without_apply_rng(hk.transform(lambda batch: forward(work.model, batch)))

    def loss(params: object, batch: dict[str, jnp.ndarray], rng: object) -> jnp.ndarray:
        wanted = jax.nn.log_softmax(net.apply(params, batch))
        return -jnp.mean(jnp.take_along_axis(wanted, batch["y"][:, None], axis=1))

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, drop_remainder=False, seed=SEED)
    algorithm = fed_avg.federated_averaging(jax.grad(loss), fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(1.0), batches)
    first = next(data.clients())[1].all_examples()
    state = algorithm.init(net.init(jax.random.PRNGKey(SEED), {"x": first["x"][:1]}))
    for cohort in cohorts(work):
        clock.start()
        rngs = jax.random.split(jax.random.PRNGKey(SEED), len(cohort))
        clients = [(str(client), data.get_client(str(client)), rng) for client, rng in zip(cohort, rngs, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        clock.stop()


if __name__ == "__main__":
    main()
