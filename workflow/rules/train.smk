# One job per run: a model, a method, a seed.


rule train:
    input:
        configs(),
        model_config,
        method_config,
        LAYOUT.facts("{model}"),
        LAYOUT.problems(TRAIN),
        LAYOUT.problems(VALIDATION_SET),
        LAYOUT.pass_rates,
    output:
        LAYOUT.metrics(*RUN),
        LAYOUT.facts(*RUN),
        report(
            LAYOUT.config(*RUN),
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "config"},
        ),
        report(
            LAYOUT.provenance(*RUN),
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "provenance"},
        ),
    log:
        LAYOUT.log("runs", *RUN),
    benchmark:
        LAYOUT.benchmark("runs", *RUN)
    conda:
        "../../environment.yml"
    threads: of_job("threads", "train")
    resources:
        **needs_of_ranks("train"),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics train --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
