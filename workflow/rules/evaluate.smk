# Evaluates the untrained models; a training run evaluates its own policy, at the temperature of tables and claims.


rule evaluate:
    input:
        JOBS.checked,
        LAYOUT.facts(*UNTRAINED),
        [LAYOUT.problems(name) for name in EVALUATION_SETS],
    output:
        [LAYOUT.evaluation_file(*UNTRAINED, name) for name in EVALUATION_SETS],
    log:
        LAYOUT.log("evaluations", *UNTRAINED),
    priority: JOBS.urgency
    conda:
        "../../environment.yml"
    threads: JOBS.of_job("threads", "evaluate")
    resources:
        **JOBS.needs("evaluate"),
    params:
        scale=SCALE,
        settings=JOBS.settings("evaluate", BASE),
        method=BASE,
    shell:
        "entropy-dynamics evaluate --scale {params.scale} --model {wildcards.model:q} --method {params.method} "
        "--seed {wildcards.seed} > {log} 2>&1"


# Evaluate trained policies at further temperatures, all in one job, and at those of the controls in another.
for name, temperatures in JOBS.temperatures.items():

    rule:
        name:
            name
        input:
            JOBS.checked,
            LAYOUT.facts(*RUN),
            [LAYOUT.problems(name) for name in EVALUATION_SETS],
        output:
            [
                LAYOUT.evaluation_file(*RUN, name, temperature)
                for temperature in temperatures
                for name in EVALUATION_SETS
            ],
        log:
            LAYOUT.log(name, *RUN),
        priority: lambda wildcards: JOBS.urgency(wildcards, "temperatures")
        conda:
            "../../environment.yml"
        threads: JOBS.of_job("threads", "evaluate")
        resources:
            **JOBS.needs(name),
        params:
            scale=SCALE,
            settings=JOBS.settings("evaluate"),
            temperatures=[f"{temperature:g}" for temperature in temperatures],
        shell:
            "entropy-dynamics evaluate --scale {params.scale} --model {wildcards.model:q} --method {wildcards.method:q} "
            "--seed {wildcards.seed} --temperatures {params.temperatures} > {log} 2>&1"
