# Problem sets, base models, and the pass-rate filter.


rule problems:
    input:
        problem_files,
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
        settings=settings("problems"),
    shell:
        "entropy-dynamics problems --scale {params.scale} > {log} 2>&1"


rule model:
    input:
        checked,
        rules.problems.output,
    output:
        LAYOUT.facts("{model}", BASE, "{seed}"),
    log:
        LAYOUT.log("models/{model}/seed{seed}"),
    priority: urgency
    localrule: DOWNLOADED
    conda:
        "../../environment.yml"
    threads: SCALE_CONFIG.threads
    resources:
        **needs("model"),
    params:
        scale=SCALE,
        settings=settings("model"),
    shell:
        "entropy-dynamics model --scale {params.scale} --model {wildcards.model:q} "
        "--seed {wildcards.seed} > {log} 2>&1"


rule pass_rates:
    input:
        LAYOUT.problems(TRAIN),
        LAYOUT.facts(PASS_RATE_MODEL, BASE, "{seed}"),
    output:
        LAYOUT.pass_rates("{seed}"),
    log:
        LAYOUT.log("pass_rates/seed{seed}"),
    priority: urgency
    conda:
        "../../environment.yml"
    threads: of_job("threads", "pass_rates", PASS_RATE_MODEL)
    resources:
        **needs_of_ranks("pass_rates", PASS_RATE_MODEL),
    params:
        scale=SCALE,
        settings=settings("pass_rates", PASS_RATE_MODEL),
    shell:
        "entropy-dynamics pass_rates --scale {params.scale} --seed {wildcards.seed} > {log} 2>&1"
