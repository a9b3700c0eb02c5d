# Tables and figures. What each one needs is said in experiments/<name>.yaml; each name is also a target.


rule table:
    input:
        inputs_of,
        "experiments/paper_values.yaml",
    output:
        multiext(f"{ROOT}/tables/{{name}}", ".csv", ".md", ".tex"),
    log:
        f"{ROOT}/logs/tables/{{name}}.log",
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        seeds=SEEDS["tables"],
    shell:
        "entropy-dynamics report {wildcards.name} --scale {params.scale} --set seeds.tables={params.seeds} > {log} 2>&1"


rule figure:
    input:
        inputs_of,
        "experiments/paper_values.yaml",
    output:
        multiext(f"{ROOT}/figures/{{name}}", ".png", ".svg", ".csv"),
    log:
        f"{ROOT}/logs/figures/{{name}}.log",
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        seeds=SEEDS["tables"],
    shell:
        "entropy-dynamics report {wildcards.name} --scale {params.scale} --set seeds.tables={params.seeds} > {log} 2>&1"


rule tables:
    input:
        expand(f"{ROOT}/tables/{{name}}.csv", name=TABLES),


rule figures:
    input:
        expand(f"{ROOT}/figures/{{name}}.png", name=FIGURES),


for name in EXPERIMENTS:

    rule:
        name:
            name
        input:
            f"{ROOT}/tables/{name}.csv"
            if name in TABLES
            else f"{ROOT}/figures/{name}.png",
