# Problem sets, base models, and the pass-rate filter.


rule problems:
    input:
        JOBS.problem_files,
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
        settings=JOBS.settings("problems"),
    shell:
        "entropy-dynamics problems --scale {params.scale} > {log} 2>&1"


rule model:
    input:
        JOBS.checked,
        rules.problems.output,
    output:
        LAYOUT.facts("{model}", BASE, "{seed}"),
    log:
        LAYOUT.log("models/{model}/seed{seed}"),
    priority: JOBS.urgency
    localrule: JOBS.downloads_models
    conda:
        "../../environment.yml"
    threads: SCALE_CONFIG.threads
    resources:
        **JOBS.needs("model"),
    params:
        scale=SCALE,
        settings=JOBS.settings("model"),
    shell:
        "entropy-dynamics model --scale {params.scale} --model {wildcards.model:q} "
        "--seed {wildcards.seed} > {log} 2>&1"


rule pass_rates:
    input:
        LAYOUT.problems(TRAIN),
        LAYOUT.facts(FILTERING, BASE, "{seed}"),
    output:
        LAYOUT.pass_rates("{seed}"),
    log:
        LAYOUT.log("pass_rates/seed{seed}"),
    priority: JOBS.urgency
    conda:
        "../../environment.yml"
    threads: JOBS.of_job("threads", "pass_rates", FILTERING)
    resources:
        **JOBS.needs("pass_rates", FILTERING),
    params:
        scale=SCALE,
        settings=JOBS.settings("pass_rates", FILTERING),
    shell:
        "entropy-dynamics pass_rates --scale {params.scale} --seed {wildcards.seed} > {log} 2>&1"
