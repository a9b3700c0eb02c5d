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
            LAYOUT.run(*RUN) / "config.yaml",
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "config"},
        ),
        report(
            LAYOUT.run(*RUN) / "provenance.json",
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "provenance"},
        ),
    log:
        LAYOUT.log("runs/{model}/{method}/seed{seed}"),
    benchmark:
        LAYOUT.benchmark("runs/{model}/{method}/seed{seed}")
    conda:
        "../../environment.yml"
    threads: THREADS
    resources:
        **needs("train"),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics train --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
