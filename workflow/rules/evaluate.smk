# One job evaluates one policy on all sets, so that the engine starts once.


rule evaluate:
    input:
        configs(),
        model_config,
        policy_facts,
        [LAYOUT.problems(name) for name in EVALUATION_SETS],
    output:
        [LAYOUT.samples(*RUN, name) for name in EVALUATION_SETS],
    log:
        LAYOUT.log("evaluations", *RUN),
    benchmark:
        LAYOUT.benchmark("evaluations", *RUN)
    conda:
        "../../environment.yml"
    threads: of_job("threads", "evaluate")
    resources:
        **needs_of_ranks("evaluate"),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics evaluate --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
        "--seed {wildcards.seed} > {log} 2>&1"
