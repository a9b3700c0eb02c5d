# One job is one run: a model, a method, a seed.


rule train:
    input:
        configs(),
        model_config,
        method_config,
        f"{ROOT}/models/{{model}}/model.json",
        f"{ROOT}/data/train.parquet",
        f"{ROOT}/data/dapo500.parquet",
        f"{ROOT}/data/pass_rates.parquet",
    output:
        metrics=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/metrics.parquet",
        config=report(
            f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/config.yaml",
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "config"},
        ),
        provenance=report(
            f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/provenance.json",
            caption="../report/runs.rst",
            category="5 Runs",
            subcategory="{model}",
            labels={"run": "{method}, seed {seed}", "file": "provenance"},
        ),
        policy=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/policy/model.json",
    log:
        f"{ROOT}/logs/runs/{{model}}/{{method}}/seed{{seed}}.log",
    benchmark:
        f"{ROOT}/logs/runs/{{model}}/{{method}}/seed{{seed}}.jsonl"
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
