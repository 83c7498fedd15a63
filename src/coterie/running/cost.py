"""What a run will do, counted before it begins: how often clients train, and how often they do so only to be evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import counted
from coterie.population import Population
from coterie.protocols import PROTOCOLS
from coterie.running.experiment import Experiment

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """How often, over a whole run; a run that stops at a target does less."""

    rounds: int
    evaluated: int
    """Rounds after which there is an evaluation."""
    trainings: int
    """Times that a client takes part in a round."""
    guests: int
    """Times that a client takes part only to be evaluated."""
    visits: int
    """Times that a client is measured without training."""

    def sentences(self) -> list[str]:
        """In words.

        >>> print(*Cost(30, 30, 150, 75, 0).sentences(), sep="\\n")
        30 rounds, 30 of them evaluated
        clients train 150 times for the result, and 75 times more only to be evaluated (50% of the training again)
        """
        told = [f"{counted(self.rounds, 'round')}, {self.evaluated:,} of them evaluated"]
        share = f" ({self.guests / self.trainings:.0%} of the training again)" if self.trainings else ""
        more = f", and {self.guests:,} times more only to be evaluated{share}" if self.guests else ""
        told.append(f"clients train {self.trainings:,} times for the result{more}")
        return [*told, f"clients are measured {self.visits:,} times without training"] if self.visits else told


def cost_of(experiment: Experiment, population: Population) -> Cost:
    """What a run will do: cohorts and evaluation sets are seeded draws, so that this is exact.

    >>> plan = Experiment.load("digits-two-class")
    >>> found = cost_of(plan, plan.population())
    >>> found.trainings, found.rounds
    (150, 30)
    """
    clients = experiment.clients_in_training(population.partition)
    protocols = [PROTOCOLS[name] for name in experiment.protocols]
    in_training = any(each.in_training for each in protocols)
    at_clients = any(each.about_clients and not each.in_training for each in protocols)
    evaluated, trainings, guests, visits = 0, 0, 0, 0
    for round in range(1, experiment.rounds + 1):
        cohort, final = set(experiment.cohort_of(round, clients)), round == experiment.rounds
        trainings += len(cohort)
        if final or round % experiment.evaluation.every == 0:
            measured = experiment.evaluated(clients, final=final)
            evaluated += 1
            guests += len(set(measured) - cohort) if in_training else 0
            visits += len(measured) if at_clients else 0
    return Cost(experiment.rounds, evaluated, 0 if experiment.method.gathers_data else trainings, guests, visits)
