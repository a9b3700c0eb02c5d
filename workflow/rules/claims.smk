# The check of the theorems on the base model, and the verdicts on the paper's claims.


rule theory:
    input:
        LAYOUT.problems(TRAIN),
        LAYOUT.facts(JOBS.theory_model, BASE, JOBS.theory_seed),
    output:
        LAYOUT.logit_steps,
    log:
        LAYOUT.log("theory"),
    conda:
        "../../environment.yml"
    threads: SCALE_CONFIG.threads
    resources:
        **JOBS.needs("theory", JOBS.theory_model),
    params:
        scale=SCALE,
        first_seed=JOBS.seeds["first"],
        settings=JOBS.settings("theory", JOBS.theory_model),
    shell:
        "entropy-dynamics theory --scale {params.scale} --set seeds.first={params.first_seed} > {log} 2>&1"


with one_line():
    SWEPT = claims.sweep_files(JOBS.folder)


rule claims:
    input:
        JOBS.claim_inputs,
        f"{JOBS.folder}/claims.yaml",
        SWEPT,
        JOBS.paper_values,
    output:
        [LAYOUT.judged("claims", suffix) for suffix in ("json", "md", "svg", "pdf")],
        report(
            LAYOUT.judged("claims", "png"),
            caption="../report/claims.rst",
            category="1 Claims",
            labels={"result": "All verdicts in one figure"},
        ),
    log:
        LAYOUT.log("claims"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        seeds=JOBS.set_seeds,
    shell:
        "entropy-dynamics claims --scale {params.scale} {params.seeds} > {log} 2>&1"


for folder in claims.JUDGED:

    rule:
        name:
            folder
        input:
            lambda wildcards, folder=folder: JOBS.inputs_of_claims(folder),
            f"{JOBS.folder}/claims.yaml",
            claims.claim_files(JOBS.folder, folder),
        output:
            [LAYOUT.judged(folder, suffix) for suffix in ("json", "md")],
        log:
            LAYOUT.log(folder),
        localrule: True
        conda:
            "../../environment.yml"
        params:
            folder=folder,
            scale=SCALE,
            seeds=JOBS.set_seeds,
        shell:
            "entropy-dynamics {params.folder} --scale {params.scale} {params.seeds} > {log} 2>&1"


rule report:
    input:
        rules.tables.input,
        rules.figures.input,
        LAYOUT.judged("claims", "json"),
        LAYOUT.judged("claims", "png"),
    output:
        report(
            LAYOUT.report,
            caption="../report/report.rst",
            category="1 Claims",
            labels={"result": "All claims, tables and figures on one page"},
        ),
    log:
        LAYOUT.log("report"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        page=PAGE,
    shell:
        "entropy-dynamics {params.page} > {log} 2>&1"
