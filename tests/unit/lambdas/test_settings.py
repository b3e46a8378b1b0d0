"""A function is told everything or does not run: nothing that the template lost is guessed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lambdas.settings import MODELS, VARIABLES

from .conftest import VALUES

NEEDED = [(function, variable) for function in MODELS for variable in VARIABLES[function]]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in {n for names in VARIABLES.values() for n in names}:
        monkeypatch.setenv(name, VALUES.get(name, name.lower()))
    return monkeypatch


@pytest.mark.parametrize("function", MODELS)
def test_with_all_its_variables_a_function_is_set_up(environment: pytest.MonkeyPatch, function: str) -> None:
    assert MODELS[function]()


@pytest.mark.parametrize(("function", "variable"), NEEDED)
def test_a_variable_lost_from_the_template_breaks_the_function(
    environment: pytest.MonkeyPatch, function: str, variable: str
) -> None:
    environment.delenv(variable)
    with pytest.raises(ValidationError, match=variable.lower()):
        MODELS[function]()
