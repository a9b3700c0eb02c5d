"""Are results what their records say? Every hash from the problems to the samples, and every number made anew.

The chain is problems, models, pass rates, runs, evaluations; then tables, figures and claims, which record nothing and
are drawn once more. No model is loaded, nothing is sampled, and nothing is written but into temporary folders.
"""

from collections.abc import Sequence

from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.verification.chain import Chain
from entropy_dynamics.verification.drawings import Drawings
from entropy_dynamics.verification.findings import Findings, Verification


def verify(layout: Layout, scale: str, overrides: Sequence[str] = ()) -> Verification:
    """Check all that stands in results/<scale> against its records, its samples and today's configs.

    What was not made is not asked for. Raises UserError for an unknown scale and for a folder
    that is not there or holds no results.
    """
    config = load_config(scale, overrides=overrides)
    if not layout.root.is_dir():
        raise UserError(f"no folder {layout.root}; make it with: snakemake --config scale={scale}")
    found = Findings(layout.root)
    Chain(layout, scale, config, overrides, found).check()
    Drawings(layout.root, scale, config, found).check()
    if not found.files:
        raise UserError(f"{layout.root} holds no results; make them with: snakemake --config scale={scale}")
    return found.verification()
