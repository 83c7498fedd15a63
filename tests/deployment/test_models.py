"""A participant's own model: the bits are those of the experiment that says so, and nobody's word has anything imported or built."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests import digests
from tests.deployment.post import NAMES, Desk, deploy, people
from tests.deployment.processes import Stage
from tests.deployment.test_processes import toml
from tests.forms import long

from coterie.deployment.models import Choices
from coterie.deployment.participant import Participant
from coterie.deployment.server_app import Deployment, conduct, deployable
from coterie.engines import Inline
from coterie.engines.flower import Hello
from coterie.errors import Interrupted
from coterie.framing import Letter
from coterie.methods import METHODS
from coterie.models import MLP, MODELS
from coterie.running.experiment import Experiment
from coterie.running.rounds import run, started
from coterie.testing import small_experiment

pytest.importorskip("flwr")


def plan_of(case: str, **changes: object) -> Experiment:
    return Experiment.parse(digests.BASE | digests.CASES[case] | {"rounds": 2, "cohort": 1.0, "engine": {"name": "inline"}} | changes)


def choosing(folder, **models) -> Desk:
    """Participants of whom some have chosen."""
    desk = Desk(people(folder))
    for each in desk.participants.values():
        each.model = models.get(each.name)
    return desk


@pytest.mark.parametrize("case", ["fml", "fccl", "feddf"])
def test_who_chooses_a_model_has_the_bits_of_an_experiment_that_says_so(case, tmp_path) -> None:
    plan, own = plan_of(case), MLP(hidden=(20,))
    there = deploy(tmp_path / "deployment", plan, choosing(tmp_path, east=own, west=own))
    models = [*plan.model, own]
    turns = [client % len(plan.model) for client in range(5)]
    said = plan.replace(model=tuple(models), models_by=(turns[0], len(plan.model), turns[2], len(plan.model), turns[4]))
    assert started(there.folder) == said.replace(admission=started(there.folder).admission)
    assert there.summary["digest"] == run(said, tmp_path / "here").summary["digest"]
    assert there.summary["digest"] != run(plan, tmp_path / "other").summary["digest"]


def test_who_chooses_the_experiments_own_model_changes_nothing(tmp_path) -> None:
    plan = plan_of("fml")
    there = deploy(tmp_path / "deployment", plan, choosing(tmp_path, north=plan.model[0], east=plan.model[1]))
    assert started(there.folder).models_by == "turn"
    assert there.summary["digest"] == run(plan, tmp_path / "here").summary["digest"]


def test_a_method_that_averages_parameters_refuses_in_a_sentence(tmp_path) -> None:
    desk = choosing(tmp_path, west=MLP(hidden=(20,)))
    hello = {"kind": "hello", "run": "0" * 32, "experiment": small_experiment(METHODS.resolve("fedavg")).resolved(), "names": NAMES}
    said = desk.participants[103].answer(Letter(hello)).fields["error"]
    assert said.startswith('participant \'west\': model = {"name": "mlp"')
    assert 'method \'fedavg\' averages parameters, expected the experiment\'s {"name": "mlp"' in said
    assert set(said.rpartition("any model: ")[2].split(", ")) >= {"fml", "fccl", "fedmd", "feddf", "local"}
    assert "\n" not in said


ODD = {
    "a path": ({"name": "os:system"}, "'os:system'"),
    "a path behind a name": ({"name": "custom", "module": "antigravity:Fly"}, "'custom'"),
    "a name that is none": ({"name": "mpl"}, "did you mean 'mlp'?"),
    "a name too long": ({"name": "mlp", "hidden": [1] * 2000}, "or one that the experiment itself names"),
    "no name": ({}, "or one that the experiment itself names"),
    "a setting that is none": ({"name": "mlp", "hiden": [4]}, "hiden"),
    "more than there can be": ({"name": "mlp", "hidden": [2**62]}, "model ="),
    "more digits than a number has": ({"name": "mlp", "hidden": [10**400]}, "model ="),
    "terabytes": ({"name": "mlp", "hidden": [10**6, 10**6]}, "expected at most"),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_model_that_is_odd_is_refused_and_neither_imported_nor_built(odd) -> None:
    said, words = ODD[odd]
    choices = Choices(small_experiment(METHODS.resolve("local")), NAMES)
    assert words in str(choices.refusal(Hello("west", 60, 20, "5f", said)))
    assert choices.begin().models_by == "turn"
    assert "antigravity" not in sys.modules


def test_a_run_goes_on_with_the_models_that_it_was_begun_with(tmp_path) -> None:
    plan, own = plan_of("fml", rounds=3), MLP(hidden=(20,))
    desk = choosing(tmp_path, west=own)

    def die(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 3:
            raise KeyboardInterrupt
        return answer

    desk.change = die
    with pytest.raises(Interrupted):
        deploy(tmp_path / "deployment", plan, desk)
    for model, name in ((None, "west"), (MLP(hidden=(24,)), "west"), (own, "north")):
        choices = Choices(plan, NAMES, started(tmp_path / "deployment" / "run"))
        said = None if model is None else MODELS.dump(model)
        assert "with which this run was begun" in str(choices.refusal(Hello(name, 60, 20, "5f", said)))
    desk.change = lambda asked, answer: answer
    for each in desk.participants.values():
        each.close()
    desk.participants[103] = Participant("west", tmp_path / "west", model=own, engine=Inline)
    there = conduct(desk, tmp_path / "deployment")
    whole = plan.replace(model=(*plan.model, own), models_by=(0, 1, 0, 2, 0))
    assert there.summary["digest"] == run(whole, tmp_path / "here").summary["digest"]


@long
def test_with_real_processes_the_bits_are_those_of_inline(tmp_path) -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES["fml"] | {"rounds": 1, "cohort": 2, "partition": {"name": "iid", "clients": 2}})
    (tmp_path / "experiment.toml").write_text(toml(plan))
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north,south", "--insecure")
        stage.client("north", "--insecure", "--model", json.dumps(MODELS.dump(plan.model[0])).replace('": ', '" = '))
        nowhere = dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")  # behind a proxy, which is not asked for this machine
        stage.client("south", "--insecure", "--model", '{ name = "mlp", hidden = [20] }', **nowhere)
        assert stage.over() == 0, stage.words("server")
    chosen = plan.replace(model=(plan.model[0], plan.model[1], MLP(hidden=(20,))), models_by=(0, 2))
    here = run(chosen, tmp_path / "here", engine=Inline())
    assert json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())["digest"] == here.summary["digest"]
    assert "here with the model mlp" in stage.words("south")


def test_images_in_folders_of_their_own_go_with_public_data_and_a_model_of_ones_own(tmp_path) -> None:
    digits, names = load_digits(), ["north", "south"]
    for at in range(120):
        where = tmp_path / "data" / names[at % 2] / str(digits.target[at])
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[at] * 255 / 16).astype(np.uint8)).save(where / f"{at}.png")
    source = {"name": "participants", "labels": [str(label) for label in range(10)], "size": 8, "channels": 1}
    data = {"source": source, "public": {"source": "digits", "samples": 60}}
    plan = plan_of("fccl", data=data, partition="domains", model={"name": "mlp", "hidden": [16]}, pretraining=0)
    own = {"north": None, "south": MLP(hidden=(20,))}
    desk = Desk(
        {at: Participant(name, tmp_path / name, tmp_path / "data" / name, model=own[name], engine=Inline) for at, name in enumerate(own)}
    )
    Deployment.new(tmp_path / "deployment", deployable(plan, names), names, 2).begun()
    there = conduct(desk, tmp_path / "deployment")
    assert there.summary["rounds"] == 2
    assert started(there.folder).models_by == (0, 1)
    kinds = {
        kind for name in names for line in (tmp_path / name / "sent.jsonl").read_text().splitlines() for kind in json.loads(line)["kinds"]
    }
    assert "logits" in kinds
    assert "weights" not in kinds
    assert "was dropped" not in (tmp_path / "deployment" / "deployment.log").read_text()
