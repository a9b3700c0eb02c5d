# Problem sets, base models, and the pass-rate filter.


rule problems:
    input:
        configs(),
        files=problem_files,
    output:
        [LAYOUT.problems(name) for name in (TRAIN, *EVALUATION_SETS)],
        LAYOUT.problems_report,
    log:
        LAYOUT.log("problems"),
    localrule: True  # compute nodes often have no network
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
        LAYOUT.facts("{model}"),
    log:
        LAYOUT.log("models/{model}"),
    priority: urgency
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
        LAYOUT.problems(TRAIN),
        LAYOUT.facts(PASS_RATE_MODEL),
    output:
        LAYOUT.pass_rates,
    log:
        LAYOUT.log("pass_rates"),
    priority: MOST_URGENT
    conda:
        "../../environment.yml"
    threads: of_job("threads", "pass_rates", PASS_RATE_MODEL)
    resources:
        **needs_of_ranks("pass_rates", PASS_RATE_MODEL),
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics pass_rates --scale {params.scale} > {log} 2>&1"
