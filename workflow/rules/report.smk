# Tables and figures, a rule each: the target `table1` makes Table 1 and what it needs. What that is, is said in
# experiments/<name>.yaml. A rule each, because a caption of the report cannot be chosen by a wildcard.
for name in TABLES:

    rule:
        name:
            name
        input:
            inputs_of(name),
        output:
            multiext(f"{ROOT}/tables/{name}", ".csv", ".md", ".tex"),
            report(
                f"{ROOT}/tables/{name}.html",
                caption=f"../report/{name}.rst",
                **in_report(name),
            ),
        log:
            f"{ROOT}/logs/tables/{name}.log",
        benchmark:
            f"{ROOT}/logs/tables/{name}.jsonl"
        localrule: True
        conda:
            "../../environment.yml"
        params:
            name=name,
            scale=SCALE,
            seeds=SET_SEEDS,
        shell:
            "entropy-dynamics report {params.name} --scale {params.scale} {params.seeds} > {log} 2>&1"


for name in FIGURES:

    rule:
        name:
            name
        input:
            inputs_of(name),
        output:
            multiext(f"{ROOT}/figures/{name}", ".svg", ".csv"),
            report(
                f"{ROOT}/figures/{name}.png",
                caption=f"../report/{name}.rst",
                **in_report(name),
            ),
        log:
            f"{ROOT}/logs/figures/{name}.log",
        benchmark:
            f"{ROOT}/logs/figures/{name}.jsonl"
        localrule: True
        conda:
            "../../environment.yml"
        params:
            name=name,
            scale=SCALE,
            seeds=SET_SEEDS,
        shell:
            "entropy-dynamics report {params.name} --scale {params.scale} {params.seeds} > {log} 2>&1"


rule tables:
    input:
        [f"{ROOT}/tables/{name}.csv" for name in TABLES if name in WANTED],


rule figures:
    input:
        [f"{ROOT}/figures/{name}.png" for name in FIGURES if name in WANTED],
