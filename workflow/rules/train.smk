# One job per run, i.e. per model, method and seed: it trains, and evaluates the policy with the engine of the training.


rule train:
    input:
        JOBS.checked,
        JOBS.untrained,
        JOBS.longer,
        [LAYOUT.problems(name) for name in (TRAIN, *EVALUATION_SETS)],
    output:
        LAYOUT.metrics(*RUN),
        LAYOUT.facts(*RUN),
        report(
            LAYOUT.run(*RUN) / CONFIG,
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "config"},
        ),
        report(
            LAYOUT.run(*RUN) / PROVENANCE,
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "provenance"},
        ),
        [LAYOUT.evaluation_file(*RUN, name) for name in EVALUATION_SETS],
    log:
        LAYOUT.log("runs", *RUN),
    priority: JOBS.urgency
    conda:
        "../../environment.yml"
    threads: JOBS.of_job("threads", "train")
    resources:
        **JOBS.needs("train"),
    params:
        scale=SCALE,
        settings=JOBS.settings("train"),
    shell:
        "entropy-dynamics train --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
