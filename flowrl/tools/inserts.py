"""`--insert NODE=OPERATOR`: operators that the command line adds to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrl.engine.plan import Plan
from flowrl.engine.protocols import OperatorContract
from flowrl.envs.spec import import_module
from flowrl.envs.wrapping import call_arguments
from flowrl.errors import ConfigError, did_you_mean

_EXPECTED = "NODE=module:op, or NODE=Name of an operator of flowrl, with arguments as in Name(0.1)"


def inserted(plan: Plan, texts: Sequence[str]) -> Plan:
    """The plan with an operator after each named node, in this order: see `Plan.insert_after`.

    A text is `NODE=module:op`, `NODE=module:op(ARGUMENTS)`, or the name of one in flowrl.operators; arguments are
    Python literals. A class, or anything with arguments, is called with them and returns the operator.

    Raises:
        ConfigError: a text, module, name or argument is wrong.
        PlanError: there is no such node, or the operator does not fit there.
    """
    for text in texts:
        where, equals, spec = text.partition("=")
        if not equals or not where.strip() or not spec.strip():
            raise ConfigError(f"--insert {text!r}: expected {_EXPECTED}")
        op = _operator(spec.strip())
        verb: Any = OperatorContract(op).verb or "for_each"
        plan = plan.insert_after(where.strip(), op, verb, site="flowrl run --insert")
    return plan


def _operator(spec: str) -> Any:
    name, bracket, _ = spec.partition("(")
    module_name, _, attribute = name.strip().rpartition(":")
    module = import_module(module_name or "flowrl.operators", repr(spec), _EXPECTED)
    found = vars(module).get(attribute)
    if not callable(found):
        there = [each for each, value in vars(module).items() if callable(value) and each[0] != "_"]
        raise ConfigError(f"--insert: no operator {attribute!r} in {module.__name__}; {did_you_mean(attribute, there)}")
    if not bracket and not isinstance(found, type):
        return found
    args, kwargs = call_arguments(spec, "the operator") if bracket else ([], {})
    try:
        return found(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--insert {spec!r}: {type(error).__name__}: {error}") from error
