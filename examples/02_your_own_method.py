"""A method of your own on one page: Ditto (Li et al., ICML 2021), written outside the package, checked, and compared.

Every client keeps a personal model v beside the shared model w that FedAvg trains, and pulls it towards the w that it received:

    v minimises  F_k(v) + lam / 2 * ||v - w||^2

What travels is FedAvg's: w down, the client's w up. Coterie has a `ditto` of its own; this one shows how little that takes. In a file
that can be imported, say `mine.py`, an experiment names it by its path: `method = { name = "mine:MyDitto", lam = 1.0 }`.

Run it: ``python examples/02_your_own_method.py`` (scikit-learn's digits, half a minute). What to see: whoever trains alone (`local`) is
behind; the pull (lam = 1) helps a little over none (lam = 0); and FedAvg's model after a client's own training, which is what the protocol
`local_post` measures, is a rival that three seeds do not tell from Ditto.
"""

from tempfile import TemporaryDirectory
from typing import ClassVar

from coterie import (
    CrossEntropy,
    Experiment,
    FedAvg,
    Federation,
    Method,
    NotNegative,
    Proximal,
    Record,
    Site,
    check_method,
    means,
    run,
    spec,
    task,
)


@spec  # a frozen dataclass: its fields are the settings, and they are checked
class MyDitto(Method):
    """FedAvg, and beside it a personal model that is pulled towards the shared one."""

    name: ClassVar[str] = "my-ditto"
    evaluates: ClassVar[tuple[str, ...]] = ("personal", "global")  # the models it has; `coterie.PROTOCOLS` says how each is measured

    lam: NotNegative = 1.0

    def start(self, fed: Federation) -> Record:
        """The server's first state: new weights, by the run's seed."""
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        """Server code sees clients through `ask` only. A reply that is not `like` the state is turned away."""
        return means(fed.ask("train", state, like=state), "model")

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Client code: what goes back to the server, and what stays with the client."""
        w = message.group("model")
        v = memory.group("personal") or w
        shared = site.fit(w, CrossEntropy())
        personal = site.fit(v, CrossEntropy() + self.lam * Proximal(w), purpose="personal")
        site.evaluate("personal", personal.params)
        return Record(model=shared.params, examples=len(site.train)), Record(personal=personal.params)


def experiment() -> Experiment:
    """Twenty clients with fifteen images each, of four classes; half of them take part in a round."""
    return Experiment.parse(
        {
            "name": "your-own-method",
            "rounds": 10,
            "cohort": 0.5,
            "data": {"source": "digits", "train": 300},
            "partition": {"name": "classes", "clients": 20, "per_client": 4},
            "model": {"name": "mlp", "hidden": [32]},
            "method": "fedavg",
            "training": {"epochs": 2, "batch": 16},
            "evaluation": {"protocols": ["local_post"], "every": 10},
            "engine": {"name": "inline"},
        }
    )


def compare(*methods: str | MyDitto) -> None:
    """Accuracy of clients' models on their own test data (the mean over all clients), for three seeds; and megabytes sent up."""
    print(f"{'method':<16}{'seed 0':>9}{'seed 1':>9}{'seed 2':>9}{'sent up':>12}")
    for method in methods:
        found = []
        for seed in range(3):
            with TemporaryDirectory() as folder:
                found.append(run(experiment().replace(method=method, seed=seed), folder))
        label = method if isinstance(method, str) else f"{method.name} {method.lam:g}"
        accuracies = "".join(f"{100 * result.accuracy('local_post'):8.1f}%" for result in found)
        print(f"{label:<16}{accuracies}{found[0].summary['bytes']['up'] / 1e6:9.2f} MB")


if __name__ == "__main__":  # workers import this file too
    model = 4 * (64 * 16 + 16 + 16 * 10 + 10)  # bytes of float32 weights and biases of the suite's 64-16-10 network
    check_method(MyDitto(), up=model, down=model, same_as=FedAvg())
    print("my-ditto keeps the contract: same bits on every engine and after a stop, FedAvg's bytes, FedAvg's shared model\n")
    compare("local", "fedavg", MyDitto(lam=0.0), MyDitto(lam=1.0))
