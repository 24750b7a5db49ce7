"""The apparatus: one to three Rydberg atoms on a line, driven by square pulses, read out with errors.

Job: turn a pulse sequence into counts the way a small tweezer machine would. It promises exact propagation of the
master equation (no time steps) and seeded shot noise; it keeps no account of shots (the bench does) and never
returns a hidden value. Frequencies are ordinary frequencies in MHz (E / h), times in us, lengths in um:

    H / h = (rabi/2) sum_i [cos(phase) sx + sin(phase) sy]_i - detuning sum_i n_i + sum_{i<j} C6 / r_ij^6 n_i n_j

with rabi = scale * set value, detuning = set value - offset, and each Rydberg atom decaying to its ground state at
rate 1/lifetime. Read-out takes each atom by itself: g reads 1 with `false_rydberg`, r reads 0 with `missed_rydberg`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fpenv.instruments.instrument import Reading, Refusal

NAME = "apparatus"
MAX_ATOMS = 3
SPACING_UM = (4.0, 40.0)
RABI_MHZ = (0.0, 2.5)
DETUNING_MHZ = (-20.0, 20.0)
DURATION_US = (0.0, 60.0)  # of one segment, and of the whole pulse
MAX_SEGMENTS = 12
SHOTS = (1, 2000)  # of one call
SECONDS_PER_SHOT = 0.4  # load, image, rearrange, pulse, image: 2 to 3 shots a second, as published machines run
SECONDS_PER_CALL = 5.0  # compiling and arming a sequence

_EXCITED = np.array([[0, 0], [0, 1]], dtype=complex)  # n = |r><r|; basis order g, r
_LOWER = np.array([[0, 1], [0, 0]], dtype=complex)  # |g><r|


@dataclass(frozen=True)
class Machine:
    """What the machine really does. Hidden from the experimenter."""

    rabi_scale: float
    detuning_offset_mhz: float
    c6_mhz_um6: float
    lifetime_us: float
    false_rydberg: float
    missed_rydberg: float


@dataclass(frozen=True)
class Segment:
    """One square piece of a pulse, in panel (set) values."""

    duration_us: float
    rabi_mhz: float
    detuning_mhz: float
    phase_rad: float = 0.0


def build(parameters: Mapping[str, Mapping[str, Any]]) -> list[Apparatus]:
    """Make the instruments of one episode from the instance's hidden parameters."""
    hidden = dict(parameters[NAME])
    budget = int(hidden.pop("budget_shots"))
    sheet = dict(hidden.pop("data_sheet"))
    return [Apparatus(Machine(**hidden), budget_shots=budget, data_sheet=sheet)]


class Apparatus:
    """A Rydberg machine of at most three atoms. Operations: `status` (free) and `run`."""

    name = NAME

    def __init__(self, machine: Machine, *, budget_shots: int, data_sheet: Mapping[str, Any]) -> None:
        self._machine = machine
        self._sheet = dict(data_sheet)
        self.budget_shots = budget_shots

    def describe(self) -> str:
        """Return the manual page."""
        return _MANUAL.format(
            budget=self.budget_shots,
            hours=self.budget_shots * SECONDS_PER_SHOT / 3600,
            per_shot=SECONDS_PER_SHOT,
            per_call=SECONDS_PER_CALL,
            spacing=SPACING_UM,
            rabi=RABI_MHZ,
            detuning=DETUNING_MHZ,
            duration=DURATION_US,
            segments=MAX_SEGMENTS,
            shots=SHOTS,
        )

    def call(self, operation: str, arguments: Mapping[str, Any], rng: np.random.Generator) -> Reading:
        """Do one operation. Raises Refusal, with nothing spent, for a bad operation or argument."""
        if operation == "status":
            _expect_keys("arguments", arguments, required=(), optional=())
            return Reading(result=dict(self._sheet))
        if operation != "run":
            raise Refusal(f"operation: expected 'status' or 'run', got {operation[:40]!r}; see the manual")
        _expect_keys("arguments", arguments, required=("atoms", "pulse", "shots"), optional=("spacing_um",))
        atoms = _integer("atoms", arguments["atoms"], 1, MAX_ATOMS)
        if atoms > 1 and "spacing_um" not in arguments:
            raise Refusal(f"spacing_um: expected a number for {atoms} atoms, got nothing; give the spacing")
        spacing_um = _number("spacing_um", arguments.get("spacing_um", SPACING_UM[1]), *SPACING_UM)
        pulse = _pulse(arguments["pulse"])
        shots = _integer("shots", arguments["shots"], *SHOTS)
        probabilities = outcome_probabilities(self._machine, atoms, spacing_um, pulse)
        counts = rng.multinomial(shots, probabilities)
        labels = [format(index, f"0{atoms}b") for index in range(2**atoms)]
        return Reading(
            result={"counts": {label: int(n) for label, n in zip(labels, counts, strict=True)}, "shots": shots},
            shots=shots,
            lab_time_s=SECONDS_PER_CALL + SECONDS_PER_SHOT * shots,
        )


def outcome_probabilities(machine: Machine, atoms: int, spacing_um: float, pulse: Sequence[Segment]) -> np.ndarray:
    """Return the probabilities of the 2**atoms read-outs; leftmost bit = first atom, 1 = read as Rydberg."""
    dimension = 2**atoms
    state = np.zeros(dimension * dimension, dtype=complex)
    state[0] = 1.0
    for segment in pulse:
        state = _exponential_action(_liouvillian(machine, atoms, spacing_um, segment), segment.duration_us, state)
    populations = np.clip(state.reshape(dimension, dimension).diagonal().real, 0.0, None)
    confusion = np.array(
        [[1 - machine.false_rydberg, machine.missed_rydberg], [machine.false_rydberg, 1 - machine.missed_rydberg]]
    )
    table = populations.reshape((2,) * atoms)
    for atom in range(atoms):
        table = np.moveaxis(np.tensordot(confusion, table, axes=(1, atom)), 0, atom)
    probabilities = table.ravel()
    return probabilities / probabilities.sum()


def _liouvillian(machine: Machine, atoms: int, spacing_um: float, segment: Segment) -> np.ndarray:
    """Return the generator on row-major flattened density matrices, per us."""
    rabi = machine.rabi_scale * segment.rabi_mhz
    detuning = segment.detuning_mhz - machine.detuning_offset_mhz
    flip = 0.5 * rabi * np.exp(1j * segment.phase_rad) * _LOWER
    one_body = flip + flip.conj().T - detuning * _EXCITED
    hamiltonian = sum(_on_site(one_body, atom, atoms) for atom in range(atoms))
    for first in range(atoms):
        for second in range(first + 1, atoms):
            energy = machine.c6_mhz_um6 / ((second - first) * spacing_um) ** 6
            hamiltonian = hamiltonian + energy * _on_site(_EXCITED, first, atoms) @ _on_site(_EXCITED, second, atoms)
    identity = np.eye(2**atoms)
    generator = -2j * math.pi * (np.kron(hamiltonian, identity) - np.kron(identity, hamiltonian.T))
    for atom in range(atoms):
        jump = _on_site(_LOWER, atom, atoms)
        loss = jump.T @ jump
        recycled = np.kron(jump, jump) - 0.5 * (np.kron(loss, identity) + np.kron(identity, loss.T))
        generator = generator + recycled / machine.lifetime_us
    return generator


def _on_site(operator: np.ndarray, atom: int, atoms: int) -> np.ndarray:
    return np.kron(np.kron(np.eye(2**atom), operator), np.eye(2 ** (atoms - 1 - atom)))


def _exponential_action(generator: np.ndarray, duration_us: float, state: np.ndarray) -> np.ndarray:
    """Return exp(generator * duration) @ state by scaling and squaring, in a Hermitian basis, where all is real.

    Error: below 1e-10 for pulses of a few us, below 1e-6 for the longest and strongest that the limits allow.
    """
    basis = _hermitian_basis(math.isqrt(math.isqrt(generator.size)))
    matrix = (basis.conj().T @ generator @ basis).real * duration_us
    norm = float(np.abs(matrix).sum(axis=0).max())
    squarings = max(0, math.ceil(math.log2(4 * norm))) if norm > 0 else 0
    matrix = matrix / 2**squarings  # norm at most 1/4: the Taylor polynomial of degree 9 is exact to 3e-13
    term = power = np.eye(len(matrix))
    for order in range(1, 10):
        term = term @ matrix / order
        power = power + term
    for _ in range(squarings):
        power = power @ power
    return basis @ (power @ (basis.conj().T @ state).real)


@lru_cache(maxsize=MAX_ATOMS)
def _hermitian_basis(dimension: int) -> np.ndarray:
    """Return an orthonormal basis of Hermitian matrices, flattened, as columns."""
    columns = []
    for row in range(dimension):
        for column in range(dimension):
            element = np.zeros((dimension, dimension), dtype=complex)
            if row == column:
                element[row, row] = 1.0
            elif row < column:
                element[row, column] = element[column, row] = math.sqrt(0.5)
            else:
                element[row, column], element[column, row] = 1j * math.sqrt(0.5), -1j * math.sqrt(0.5)
            columns.append(element.ravel())
    return np.array(columns).T


def _pulse(value: object) -> tuple[Segment, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise Refusal(f"pulse: expected a list of segments, got {type(value).__name__}; see the manual")
    if len(value) > MAX_SEGMENTS:
        raise Refusal(f"pulse: expected at most {MAX_SEGMENTS} segments, got {len(value)}")
    segments = tuple(_segment(f"pulse[{index}]", item) for index, item in enumerate(value))
    total_us = sum(segment.duration_us for segment in segments)
    if total_us > DURATION_US[1] * (1 + 1e-12):
        raise Refusal(f"pulse: expected at most {DURATION_US[1]} us in all, got {total_us:.6g}; shorten it")
    return segments


def _segment(where: str, value: object) -> Segment:
    if not isinstance(value, Mapping):
        raise Refusal(f"{where}: expected an object, got {type(value).__name__}")
    _expect_keys(where, value, required=("duration_us", "rabi_mhz", "detuning_mhz"), optional=("phase_rad",))
    return Segment(
        duration_us=_number(f"{where}.duration_us", value["duration_us"], *DURATION_US),
        rabi_mhz=_number(f"{where}.rabi_mhz", value["rabi_mhz"], *RABI_MHZ),
        detuning_mhz=_number(f"{where}.detuning_mhz", value["detuning_mhz"], *DETUNING_MHZ),
        phase_rad=_number(f"{where}.phase_rad", value.get("phase_rad", 0.0), -2 * math.pi, 2 * math.pi),
    )


def _expect_keys(where: str, given: Mapping, *, required: Sequence[str], optional: Sequence[str]) -> None:
    missing = [key for key in required if key not in given]
    unknown = [str(key)[:40] for key in given if key not in required and key not in optional]
    if missing:
        raise Refusal(f"{where}: expected {', '.join(required)}, missing {', '.join(missing)}")
    if unknown:
        known = ", ".join([*required, *optional]) or "nothing"
        raise Refusal(f"{where}: expected {known}, got {', '.join(map(repr, unknown[:5]))} as well")


def _number(where: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(f"{where}: expected a number from {low:g} to {high:g}, got {type(value).__name__}")
    if not low <= value <= high:  # false for nan and for integers of any size
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)[:20]
        raise Refusal(f"{where}: expected a number from {low:g} to {high:g}, got {shown}")
    return float(value)


def _integer(where: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{where}: expected an integer from {low} to {high}, got {type(value).__name__}")
    if not low <= value <= high:
        shown = str(value) if abs(value) < 10**18 else "a larger one"
        raise Refusal(f"{where}: expected an integer from {low} to {high}, got {shown}")
    return value


_MANUAL = """\
Tweezer machine, one to three atoms on a line, one global laser from the ground to the Rydberg state.
Grant: {budget} shots in all ({hours:.1f} h of pulsing at {per_shot} s a shot; {per_call:g} s more for each call).
Shots beyond the grant are not refused; they are logged as overspent beam time.

status   No arguments, no shots. The data sheet of this machine and of the planned chain.

run      One pulse sequence, repeated. Arguments:
  atoms       integer, 1 to 3
  spacing_um  number, {spacing[0]:g} to {spacing[1]:g}; between neighbours on a line (needed from two atoms on)
  pulse       list of 0 to {segments} segments, played without gaps on atoms that start in the ground state:
                duration_us   {duration[0]:g} to {duration[1]:g}; all segments together at most {duration[1]:g}
                rabi_mhz      {rabi[0]:g} to {rabi[1]:g}, panel value (0: laser off)
                detuning_mhz  {detuning[0]:g} to {detuning[1]:g}, panel value; positive favours the Rydberg state
                phase_rad     optional, -2 pi to 2 pi, default 0: phase of the drive
  shots       integer, {shots[0]} to {shots[1]}
Returns {{"counts": {{bit string: shots}}, "shots": n}}: leftmost bit is the first atom, 1 = read as Rydberg. All
2^atoms strings are listed. Example:
  {{"atoms": 2, "spacing_um": 9.0, "shots": 200,
    "pulse": [{{"duration_us": 0.4, "rabi_mhz": 1.2, "detuning_mhz": 0.0}}]}}

Frequencies are ordinary frequencies (cycles per us): a resonant atom oscillates as sin^2(pi rabi t). The phase of the
rotating frame is kept through segments with the laser off, so that Ramsey sequences work. Panel values of the Rabi
frequency are proportional to the true ones, panel values of the detuning are off by a constant, distances are
as accurate as the imaging magnification. A bad argument is refused with a reason and costs nothing.
"""
