# One job is one run: a model, a method, a seed.


rule train:
    input:
        configs(),
        model_config,
        method_config,
        f"{ROOT}/models/{{model}}/model.safetensors",
        f"{ROOT}/data/train.parquet",
        f"{ROOT}/data/dapo500.parquet",
        f"{ROOT}/data/pass_rates.parquet",
    output:
        metrics=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/metrics.parquet",
        config=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/config.yaml",
        provenance=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/provenance.json",
        policy=f"{ROOT}/runs/{{model}}/{{method}}/seed{{seed}}/policy/model.safetensors",
    log:
        f"{ROOT}/logs/runs/{{model}}/{{method}}/seed{{seed}}.log",
    benchmark:
        f"{ROOT}/logs/runs/{{model}}/{{method}}/seed{{seed}}.jsonl"
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics train --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
