# One job evaluates one policy on all sets, so that the imports are paid once.


rule evaluate:
    input:
        configs(),
        model_config,
        policy_facts,
        expand(f"{ROOT}/data/{{dataset}}.parquet", dataset=EVALUATION_SETS),
    output:
        expand(
            f"{ROOT}/evaluations/{{{{model}}}}/{{{{method}}}}/seed{{{{seed}}}}/{{dataset}}.parquet",
            dataset=EVALUATION_SETS,
        ),
    log:
        f"{ROOT}/logs/evaluations/{{model}}/{{method}}/seed{{seed}}.log",
    benchmark:
        f"{ROOT}/logs/evaluations/{{model}}/{{method}}/seed{{seed}}.jsonl"
    conda:
        "../../environment.yml"
    threads: THREADS
    resources:
        **needs("evaluate"),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics evaluate --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
