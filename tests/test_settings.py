"""Settings: what a file may say, in Coterie's specs and in a user's, and what happens to what it may not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import TypeAdapter

from coterie.errors import UserError
from coterie.methods import METHODS, FedAvg
from coterie.running.experiment import Experiment
from coterie.running.files import assign, without_nothing
from coterie.settings import Count, Positive, Registry, Share, Spec, field_of, fields_of, spec
from coterie.training.optimisers import Sgd


class Fruit(Spec):
    """The base of what is named here."""


@spec
class Apple(Fruit):
    name: ClassVar[str] = "apple"
    weight: Positive = 1.0
    seeds: Count = 5


@dataclass(frozen=True)
class Core:
    size: float = 0.1


@dataclass(frozen=True)
class Pear(Fruit):
    """As a user writes it: a plain dataclass."""

    name: ClassVar[str] = "pear"
    weight: float = 1.0
    core: Core = field(default_factory=Core)


@dataclass(frozen=True)
class Bosc(Pear):
    """A subclass whose author forgot the name."""


FRUITS: Registry[Fruit] = Registry("fruit", Fruit, [Apple, Pear])


@spec
class Pie:
    filling: Annotated[Fruit, field_of(FRUITS, "pie.filling")]
    topping: Annotated[tuple[Fruit, ...], fields_of(FRUITS, "pie.topping")] = ()


def test_a_spec_is_frozen_and_strict() -> None:
    with pytest.raises(AttributeError):
        Apple().weight = 2.0  # type: ignore[misc]
    wrong = {"weight": "1", "seeds": 0}
    for key, message in (("weight", "valid number"), ("seeds", "greater than or equal to 1")):
        with pytest.raises(UserError, match=message):
            FRUITS.resolve({"name": "apple", key: wrong[key]})


@pytest.mark.parametrize("name", ["apple", "pear"])
def test_an_unknown_setting_is_an_error_in_ours_and_in_a_plain_dataclass(name: str) -> None:
    with pytest.raises(UserError, match=r"fruit\.wieght = 5\.0: no such key here, did you mean 'weight'\?"):
        FRUITS.resolve({"name": name, "wieght": 5.0})


def test_an_unknown_setting_inside_a_table_of_a_plain_dataclass_is_an_error() -> None:
    assert FRUITS.resolve({"name": "pear", "core": {"size": 0.2}}) == Pear(core=Core(0.2))
    with pytest.raises(UserError, match=r"fruit\.core\.sise = 1: no such key here, did you mean 'size'\?"):
        FRUITS.resolve({"name": "pear", "core": {"sise": 1}})


def test_two_specs_of_one_name_are_an_error() -> None:
    class Another(Fruit):
        name = "apple"

    with pytest.raises(ValueError, match="two specs of fruit are called 'apple'"):
        Registry("fruit", Fruit, [Apple, Another])


def test_every_method_is_registered_once() -> None:
    assert len(set(METHODS)) == len(METHODS.specs) == len(set(METHODS.specs.values()))


def test_a_subclass_that_forgot_its_name_has_its_class_s() -> None:
    assert (Bosc.name, Bosc().name) == ("bosc", "bosc")
    assert FRUITS.dump(Bosc())["name"] == f"{__name__}:Bosc"

    @dataclass(frozen=True)
    class Zero(FedAvg):
        """Zeros."""

    assert Zero().name == "zero"


def test_a_field_that_names_a_spec_takes_a_name_a_table_and_an_instance() -> None:
    for filling in ("apple", {"name": "apple"}, Apple()):
        assert Pie(filling=filling).filling == Apple()  # type: ignore[arg-type]
    assert Pie(filling=Apple(), topping="pear").topping == (Pear(),)  # type: ignore[arg-type]
    assert Pie(filling=Apple(), topping=["pear", Apple()]).topping == (Pear(), Apple())  # type: ignore[arg-type]


def test_a_field_that_names_a_spec_is_written_as_a_table() -> None:
    written: Any = TypeAdapter(Pie).dump_python(Pie(filling=Apple(), topping=(Pear(),)))
    assert written == {
        "filling": {"name": "apple", "weight": 1.0, "seeds": 5},
        "topping": [{"name": "pear", "weight": 1.0, "core": {"size": 0.1}}],
    }
    assert TypeAdapter(Pie).validate_json(json.dumps(written)) == Pie(filling=Apple(), topping=(Pear(),))


def test_a_mistake_in_a_field_that_names_a_spec_is_said_under_its_key() -> None:
    with pytest.raises(ValueError, match=r"pie\.filling\.weight = -1"):
        Pie(filling={"name": "apple", "weight": -1.0})  # type: ignore[arg-type]


def test_a_share_is_from_nothing_to_all() -> None:
    for value in (0.0, 1.0):
        assert TypeAdapter(Share).validate_python(value) == value
    with pytest.raises(ValueError, match="less than or equal to 1"):
        TypeAdapter(Share).validate_python(1.5)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cohort", 0, "cohort = 0: should be greater than or equal to 1, or greater than 0"),
        ("cohort", 1.5, "cohort = 1.5: should be a valid integer, or less than or equal to 1"),
        ("training.batch", "x", "training.batch = 'x': should be a valid integer, or 'all'"),
        ("evaluation.clients", 0, "evaluation.clients = 0: should be greater than or equal to 1, or a list"),
        (
            "evaluation.protocols",
            "global",
            "evaluation.protocols = 'global': should be a list of strings in quotes, such as [\"global\"] (in a shell",
        ),
        (
            "evaluation.protocols",
            "[composed, global]",
            'evaluation.protocols = \'[composed, global]\': should be a list of strings in quotes, such as ["composed", "global"]',
        ),
        ("data.public", 3, "data.public = 3: should be a table"),
        ("model", [], "model = []: expected at least one"),
    ],
)
def test_messages_do_not_show_their_machinery(key, value, said) -> None:
    table = Experiment.load("digits-two-class").resolved()
    assign(table, key, value)
    with pytest.raises(UserError) as caught:
        Experiment.parse(without_nothing(table))
    assert str(caught.value).startswith(said)


def test_a_setting_of_what_is_left_at_its_default() -> None:
    table = {"name": "t", "data": {"source": "digits"}, "partition": {"name": "iid", "clients": 2}, "model": "mlp", "method": "fedavg"}
    assert Experiment.parse(table | {"training": {"optimiser": {"lr": 5.0}}}).training.optimiser == Sgd(lr=5.0)


def test_a_required_key_that_is_misspelt_is_named_with_its_nearest() -> None:
    with pytest.raises(UserError, match=r"partition\.cliens = 5: no such key here, did you mean 'clients'\?"):
        Experiment.load("digits-two-class", ['partition={name="dirichlet", cliens=5}'])
