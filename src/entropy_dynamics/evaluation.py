"""The earlier name of `entropy_dynamics.analysis.pass_at_k`, kept for one version."""

from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k as problem_pass_at_k
