"""`entropy-dynamics verify`: checks hashes from problems to samples, grades, and all tables, figures and claims.

The chain is problems, models, pass rates, runs, evaluations. Tables, figures and claims are redrawn and compared.
No model is loaded, nothing is sampled, and only temporary folders are written to.
"""

from collections.abc import Sequence

from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import method_types
from entropy_dynamics.results.layout import SEEDS, Layout
from entropy_dynamics.verification.chain import Chain
from entropy_dynamics.verification.drawings import Drawings
from entropy_dynamics.verification.findings import Verification


def verify(layout: Layout, scale: str, overrides: Sequence[str] = ()) -> Verification:
    """Check results/<scale>, which may be incomplete, against its records, its samples and the configs.

    Raises UserError if the scale is unknown, or if its folder does not exist, contains no results or was restored.
    """
    config = load_config(scale, overrides=overrides)
    if not layout.root.is_dir():
        raise UserError(f"no folder {layout.root}; make it with: snakemake --config scale={scale}")
    if (layout.root / SEEDS).is_file():
        raise UserError(f"{layout.root} was restored from published counts: there are no samples to verify")
    method_types()  # a mistake in a method's file is not one of the results
    findings = Verification(layout.root)
    Chain(layout, config, overrides, findings).check()
    Drawings(layout, config, findings).check()
    if not findings.checked:
        raise UserError(f"{layout.root} contains no results; make them with: snakemake --config scale={scale}")
    return findings
