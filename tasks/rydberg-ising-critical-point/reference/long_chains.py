"""Critical detuning of the infinite chain by DMRG (TeNPy) on long open chains: writes `long_chains.csv`.

Job: the ground state of the full Hamiltonian (every pair up to `RANGE` sites apart) for chains that exact
diagonalisation cannot reach, and from it sigma_mid at three detunings round the crossing. Energies are in units
of the Rabi frequency. One row per ground state; `critical_line.py` turns the rows into the critical line.
It does not read, and shares no code with, the instance, the instruments or the exact diagonalisation.

    python long_chains.py                      # the whole table, about 15 min on one core
    python long_chains.py --quick              # one ratio, short chains, half a minute

Needs physics-tenpy (written with 1.1.1).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from tenpy.algorithms import dmrg
from tenpy.models.lattice import Chain
from tenpy.models.model import CouplingMPOModel
from tenpy.networks.mps import MPS
from tenpy.networks.site import SpinHalfSite

HEADER = "v1_over_rabi,length,detuning_over_rabi,range,bond_dimension,energy,sigma_mid,half_chain_entropy"
RANGE = 12  # what is cut off shifts the critical point by less than 1e-5 of the Rabi frequency; see README.md
BOND_DIMENSION = 20  # 16, 24 and 40 agree to 2e-8 in sigma_mid for 97 sites at the critical point
STEP = 0.004

# Where the crossing lies, roughly: exact diagonalisation of 9 and 13 sites, shifted to long chains.
GUESS = {10.0: 1.052, 11.0: 1.070, 12.0: 1.092, 13.0: 1.113, 14.0: 1.136, 15.0: 1.159, 16.0: 1.184,
         17.0: 1.209, 18.0: 1.235}  # fmt: skip


class RydbergChain(CouplingMPOModel):
    """(1/2) sum sigma_x - delta sum n + sum v1 / r^6 n n, open ends, units of the Rabi frequency."""

    def init_sites(self, model_params):
        site = SpinHalfSite(conserve=None)
        excited = np.zeros((2, 2))
        excited[site.state_labels["up"], site.state_labels["up"]] = 1.0
        site.add_op("n", excited)
        return site

    def init_lattice(self, model_params):
        return Chain(model_params["L"], self.init_sites(model_params), bc="open", bc_MPS="finite")

    def init_terms(self, model_params):
        self.add_onsite(1.0, 0, "Sx")
        self.add_onsite(-model_params["delta"], 0, "n")
        for distance in range(1, min(model_params["range"], model_params["L"] - 1) + 1):
            self.add_coupling(model_params["v1"] / distance**6, 0, "n", 0, "n", distance)


def solve(length, v1, delta, reach, bond_dimension, psi=None):
    """Return (energy, sigma_mid, half-chain entropy, state); `psi` is a starting state."""
    model = RydbergChain({"L": length, "v1": v1, "delta": delta, "range": reach})
    if psi is None:
        antiferromagnet = ["up" if site % 2 == 0 else "down" for site in range(length)]
        psi = MPS.from_product_state(model.lat.mps_sites(), antiferromagnet)
    options = {
        "trunc_params": {"chi_max": bond_dimension, "svd_min": 1e-10},
        "mixer": None,
        "max_sweeps": 30,
        "min_sweeps": 3,
        "max_E_err": 1e-12,
        "max_S_err": 1e-8,
        "max_trunc_err": None,
        "lanczos_params": {"N_max": 6},
    }
    energy, psi = dmrg.TwoSiteDMRGEngine(psi, model, options).run()
    density = psi.expectation_value("n")
    middle = (length + 1) // 2 - 1
    return energy, abs(density[middle] - density[middle + 1]), psi.entanglement_entropy()[length // 2], psi


def sweep(ratios, lengths, reach, bond_dimension, out):
    """Append one row per (ratio, length, detuning) to the open file `out`."""
    for ratio in ratios:
        for length in lengths:
            psi = None
            for delta in (GUESS[ratio] - STEP, GUESS[ratio], GUESS[ratio] + STEP):
                start = time.monotonic()
                energy, sigma, entropy, psi = solve(length, ratio, delta, reach, bond_dimension, psi)
                print(
                    f"{ratio},{length},{delta:.6f},{reach},{bond_dimension},{energy:.11f},{sigma:.11f},{entropy:.9f}",
                    file=out,
                    flush=True,
                )
                print(f"{ratio} {length} {delta:.4f}: {time.monotonic() - start:.1f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one ratio, 9 to 17 sites, written to stdout")
    parser.add_argument("--ratios", default=",".join(str(ratio) for ratio in GUESS))
    parser.add_argument("--lengths", default="17,25,33,49")
    parser.add_argument("--range", type=int, default=RANGE)
    parser.add_argument("--bond-dimension", type=int, default=BOND_DIMENSION)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("long_chains.csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.quick:
        print(HEADER)
        sweep([14.0], [9, 13, 17], options.range, options.bond_dimension, sys.stdout)
        return
    fresh = not options.out.exists()
    with options.out.open("a", encoding="ascii") as out:
        if fresh:
            print(HEADER, file=out, flush=True)
        ratios = [float(ratio) for ratio in options.ratios.split(",")]
        lengths = [int(length) for length in options.lengths.split(",")]
        sweep(ratios, lengths, options.range, options.bond_dimension, out)


if __name__ == "__main__":
    main()
