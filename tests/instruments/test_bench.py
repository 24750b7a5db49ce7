from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fpenv.errors import TaskError
from fpenv.instruments.bench import Bench, describe_call
from fpenv.instruments.instrument import Reading, Refusal


class Dice:
    name = "dice"
    budget_shots = 10

    def describe(self) -> str:
        return "roll: shots"

    def call(self, operation: str, arguments: Mapping[str, Any], rng: np.random.Generator) -> Reading:
        if operation == "break":
            raise ZeroDivisionError
        if operation == "nan":
            return Reading(result={"x": float("nan")})
        if operation != "roll":
            raise Refusal(f"operation: expected roll, got {operation}")
        shots = int(arguments["shots"])
        return Reading(result={"faces": rng.integers(1, 7, size=shots).tolist()}, shots=shots, lab_time_s=shots * 0.5)


def test_the_same_calls_give_the_same_readings_and_another_seed_others() -> None:
    def play(seed: int) -> list[Any]:
        bench = Bench([Dice()], seed=seed)
        return [bench.call("dice", "roll", {"shots": 20}).result for _ in range(2)]

    assert play(1) == play(1)
    assert play(1) != play(2)
    assert play(1)[0] != play(1)[1]


def test_a_refused_call_is_kept_and_costs_nothing() -> None:
    bench = Bench([Dice()], seed=0)
    call = bench.call("dice", "throw", {})
    assert describe_call(call) == {"error": "operation: expected roll, got throw"}
    assert bench.shots_left == 10
    assert bench.log == (call,)


def test_overspending_is_possible_and_shows_as_negative_shots_left() -> None:
    bench = Bench([Dice()], seed=0)
    bench.call("dice", "roll", {"shots": 14})
    assert bench.shots_left == -4


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (("cup", "roll", {}), "expected one of dice, got 'cup'"),
        ((["dice"], "roll", {}), "expected one of dice"),
        (("dice", 5, {}), "operation: expected a string, got int"),
        (("dice", "roll", [1]), "arguments: expected an object, got list"),
    ],
)
def test_a_malformed_call_is_refused_with_what_was_expected(call: tuple[Any, Any, Any], complaint: str) -> None:
    refusal = Bench([Dice()], seed=0).call(*call).refusal
    assert refusal is not None
    assert complaint in refusal


@pytest.mark.parametrize("operation", ["break", "nan"])
def test_an_instrument_whose_code_breaks_is_the_tasks_fault(operation: str) -> None:
    with pytest.raises(TaskError, match=f"instrument dice: operation {operation} raised"):
        Bench([Dice()], seed=0).call("dice", operation, {})
