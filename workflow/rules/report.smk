# One rule per table and figure, because the category in the report cannot depend on a wildcard. The target `table1`
# builds Table 1 and the runs listed in experiments/table1.yaml; the target `extras` builds those in experiments/extras.
for name, experiment in EXPERIMENTS.items():
    kind, suffixes, shown = (
        ("table", ["csv", "tex"], "md")
        if name in TABLES
        else ("figure", ["csv", "svg", "pdf"], "png")
    )
    path = getattr(LAYOUT, kind)

    rule:
        name:
            name
        input:
            inputs_of(name),
        output:
            [path(name, suffix) for suffix in suffixes],
            report(
                path(name, shown),
                caption="../report/experiment.rst",
                **in_report(experiment),
            ),
        log:
            LAYOUT.log(f"{kind}s/{name}"),
        priority: MOST_URGENT
        localrule: True
        conda:
            "../../environment.yml"
        params:
            name=name,
            scale=SCALE,
            labels=labels_in(name),
            seeds=SET_SEEDS,
            shows=experiment.spec.shows,
            bounds=KEPT_RATES if experiment.spec.kind == "data_filter" else None,
        shell:
            "entropy-dynamics draw {params.name} --scale {params.scale} {params.seeds} > {log} 2>&1"


rule tables:
    input:
        files_of(name for name in TABLES if name in WANTED),


rule further:
    input:
        files_of(of_target(FURTHER)),


rule extras:
    input:
        files_of(of_target("extras")),


rule methods:
    input:
        files_of(of_target("methods")),


rule figures:
    input:
        files_of(name for name in FIGURES if name in WANTED),
