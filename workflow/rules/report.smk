# One rule per table and figure, because the category in the report cannot depend on a wildcard. The target `table1`
# builds Table 1 and the runs listed in experiments/table1.yaml; the target `extras` builds those in experiments/extras.
for name, experiment in JOBS.experiments.items():
    files, shown = JOBS.drawn(name)

    rule:
        name:
            name
        input:
            JOBS.inputs_of(name),
        output:
            files,
            report(shown, caption="../report/experiment.rst", **JOBS.in_report(name)),
        log:
            LAYOUT.log(f"{JOBS.kind(name)}s/{name}"),
        priority: JOBS.most_urgent
        localrule: True
        conda:
            "../../environment.yml"
        params:
            name=name,
            scale=SCALE,
            labels=JOBS.labels_in(name),
            seeds=JOBS.set_seeds,
            shows=experiment.spec.shows,
            bounds=JOBS.bounds(name),
        shell:
            "entropy-dynamics draw {params.name} --scale {params.scale} {params.seeds} > {log} 2>&1"


rule tables:
    input:
        JOBS.of_kind("table"),


rule further:
    input:
        JOBS.of_target(FURTHER),


rule extras:
    input:
        JOBS.of_target("extras"),


rule methods:
    input:
        JOBS.of_target("methods"),


rule figures:
    input:
        JOBS.of_kind("figure"),
