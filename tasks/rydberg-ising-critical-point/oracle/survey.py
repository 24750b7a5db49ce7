"""Step 1: read the brief, the manual and the literature. Writes work/literature.json for the bibliography."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pypdf

HOME = Path.home()
WORK = HOME / "work"
QUERIES = (
    "hard-boson model period-two density wave Ising transition",
    "constrained spin chain blockade PXP effective Hamiltonian",
    "Schrieffer-Wolff transformation second order energy denominators",
    "Ising conformal field theory Rydberg chain open boundary order parameter",
    "order-parameter profile critical strip fixed walls",
    "boundary conformal field theory surface critical behavior",
    "finite-size scaling crossing exponents",
    "transverse-field Ising chain exact exponents beta nu",
    "Kibble-Zurek critical dynamics Rydberg simulator exponent",
    "imperfections coherent excitation detection errors Rydberg decay Doppler",
    "Rydberg lifetime blackbody radiation",
    "calibration van der Waals interaction two atoms",
    "van der Waals tails phase boundary Rydberg chain",
    "adiabatic preparation ordered phases atom array",
    "openness decoherence critical state preparation length scale",
    "density matrix renormalisation group",
)


def main() -> None:
    WORK.mkdir(exist_ok=True)
    brief = pypdf.PdfReader(HOME / "proposal.pdf")
    print(f"the brief has {len(brief.pages)} page and {len(brief.pages[0].extract_text())} characters")
    manual = lab.call("instrument", {"operation": "manual"})["manual"]
    print(manual)
    works: dict[str, dict] = {}
    for query in QUERIES:
        hits = lab.call("literature", {"query": query, "limit": 5})["works"]
        for work in hits:
            works.setdefault(work["key"], work)
        print(f"{query}: {', '.join(work['key'] for work in hits)}", flush=True)
    (WORK / "literature.json").write_text(json.dumps(works, ensure_ascii=False))
    print(f"{len(works)} works found")


if __name__ == "__main__":
    main()
