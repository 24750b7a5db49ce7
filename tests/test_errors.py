import pickle

import pytest

from fpenv import errors


@pytest.mark.parametrize(
    "kind", [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.FpenvError)]
)
def test_an_error_survives_pickling_with_its_message(kind: type[errors.FpenvError]) -> None:
    error = pickle.loads(pickle.dumps(kind("expected a, got b")))
    assert type(error) is kind
    assert str(error) == "expected a, got b"


def test_a_lost_sandbox_remembers_through_pickling_whose_doing_it_was() -> None:
    error = pickle.loads(pickle.dumps(errors.SandboxGone("gone", by_agent=True)))
    assert error.by_agent is True
