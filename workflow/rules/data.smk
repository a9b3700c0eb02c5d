# Problem sets, base models, and the pass-rate filter.


rule problems:
    input:
        configs(),
        files=problem_files,
    output:
        expand(f"{ROOT}/data/{{name}}.parquet", name=["train", *EVALUATION_SETS]),
        f"{ROOT}/data/problems.json",
    log:
        f"{ROOT}/logs/problems.log",
    benchmark:
        f"{ROOT}/logs/problems.jsonl"
    localrule: True  # light, and where a scale downloads its problems compute nodes often have no network
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics problems --scale {params.scale} > {log} 2>&1"


rule model:
    input:
        configs(),
        model_config,
        rules.problems.output,
    output:
        f"{ROOT}/models/{{model}}/model.json",
    log:
        f"{ROOT}/logs/models/{{model}}.log",
    benchmark:
        f"{ROOT}/logs/models/{{model}}.jsonl"
    priority: 100
    localrule: REAL_MODELS
    conda:
        "../../environment.yml"
    threads: SCALE_CONFIG.threads
    resources:
        **needs("model"),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics model --scale {params.scale} --model {wildcards.model:q} > {log} 2>&1"


rule pass_rates:
    input:
        configs(f"model/{PASS_RATE_MODEL}"),
        f"{ROOT}/data/train.parquet",
        f"{ROOT}/models/{PASS_RATE_MODEL}/model.json",
    output:
        f"{ROOT}/data/pass_rates.parquet",
    log:
        f"{ROOT}/logs/pass_rates.log",
    benchmark:
        f"{ROOT}/logs/pass_rates.jsonl"
    priority: 100
    conda:
        "../../environment.yml"
    threads: THREADS
    resources:
        **needs("pass_rates", PASS_RATE_MODEL),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics pass_rates --scale {params.scale} > {log} 2>&1"
