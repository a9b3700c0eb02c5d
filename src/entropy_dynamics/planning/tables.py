"""The text of a plan, with a table of its jobs."""

from collections.abc import Sequence

from entropy_dynamics.planning.duration import response_tokens
from entropy_dynamics.planning.footprint import GIB
from entropy_dynamics.planning.plan import Plan


def format_plan(plan: Plan, markdown: bool = False) -> str:
    """The plan as plain-text tables for a terminal, or as Markdown."""
    config, stated, gpu = plan.config, plan.config.plan, plan.config.plan.hardware
    on_cpu = config.hardware.device == "cpu"
    shorter = f", {plan.shorter} policies of their earlier steps" if plan.shorter else ""
    runs = f"{plan.trained} training runs{shorter} and {plan.evaluated} evaluations of untrained models"
    if on_cpu and not plan.jobs:
        return f"Scale {config.scale} runs on a CPU: {runs}. Toy models need no plan."
    overview = [
        {
            "model": job.label,
            "job": job.name,
            "how many": job.count,
            "GPUs": job.gpus,
            "GiB sampling": f"{sum(job.memory['sampling'].values()) / GIB:.0f}",
            "GiB training": f"{sum(job.memory['training'].values()) / GIB:.0f}" if job.trains else "",
            "host GiB": f"{job.host / GIB:.0f}",
            "M tokens sampled": f"{job.tokens_sampled / 1e6:.0f}",
            "M tokens trained": f"{job.tokens_trained / 1e6:.0f}" if job.trains else "",
            "hours each": f"{job.hours:.1f}",
            "GPU-hours in all": f"{job.count * job.gpu_hours:,.0f}",
        }
        for job in plan.jobs
    ]
    disk = ", ".join(f"{what} {max(size / 1e9, 1):,.0f} GB" for what, size in plan.disk.items())
    if on_cpu:
        timed = all(job.config.model.name in stated.measured for job in plan.jobs)
        shown = ["model", "job", "how many", "GiB sampling", "GiB training", "host GiB", *["hours each"] * timed]
        rows = [{name: row[name] for name in shown} for row in overview]
        hours = "How long jobs take on a CPU is not estimated."
        if timed:
            hours = f"About {plan.gpu_hours:,.0f} hours on one core at the speed in plan.measured, without cold starts."
        return f"""\
Scale {config.scale} runs on a CPU: {runs}. Memory of the jobs with pretrained models, per process and in all:

{_table(rows, markdown)}

Disk: {disk}. Toy models need no plan. {hours}"""
    machine = config.hardware.processes
    measured = f"; measured for {', '.join(stated.measured)}" if stated.measured else ""
    return f"""\
Scale {config.scale} on {stated.gpu} GPUs of {gpu.memory_gib:g} GiB:

{_table(overview, markdown)}

In total {plan.gpu_hours:,.0f} GPU-hours, which keep {machine} GPU{"s" if machine > 1 else ""} busy for \
{plan.gpu_hours / machine:,.0f} hours ({plan.gpu_hours / machine / 24:.1f} days). Disk: {disk}.

Estimated for {gpu.tflops:g} TFLOPS and {gpu.bandwidth_gb_s:g} GB/s (published), of which training reaches \
{gpu.training_mfu:.0%} and decoding {gpu.decoding_mbu:.0%} (assumed), {stated.decode_step_ms:g} ms per decoding step \
besides (assumed), and responses of {response_tokens(config):g} tokens (assumed) where a model's config has no other \
number{measured}."""


def _table(rows: Sequence[dict[str, str]], markdown: bool) -> str:
    from tabulate import tabulate

    style = "pipe" if markdown else "plain"
    return tabulate(rows, "keys", style, disable_numparse=True, stralign="right", colalign=("left", "left"))
