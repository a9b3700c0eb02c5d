# The check of the theorems on the base model, and the verdicts on the paper's claims.


rule theory:
    input:
        configs("model/qwen2.5-7b-instruct"),
        LAYOUT.problems("train"),
        LAYOUT.facts("qwen2.5-7b-instruct"),
    output:
        LAYOUT.logit_steps,
    log:
        LAYOUT.log("theory"),
    benchmark:
        LAYOUT.benchmark("theory")
    conda:
        "../../environment.yml"
    threads: SCALE_CONFIG.threads
    resources:
        **needs("evaluate", "qwen2.5-7b-instruct") | {"gpu": ONE_GPU},
    params:
        scale=SCALE,
    shell:
        "entropy-dynamics theory --scale {params.scale} --model qwen2.5-7b-instruct > {log} 2>&1"


rule claims:
    input:
        claim_inputs,
        "experiments/claims.yaml",
        "experiments/figure2.yaml",
        "experiments/paper_values.yaml",
    output:
        [LAYOUT.claims(suffix) for suffix in ("json", "md", "svg")],
        report(
            LAYOUT.claims("html"),
            caption="../report/claims.rst",
            category="1 Claims",
            labels={"result": "Every claim with its verdict"},
        ),
        report(
            LAYOUT.claims("png"),
            caption="../report/claims.rst",
            category="1 Claims",
            labels={"result": "All verdicts in one figure"},
        ),
    log:
        LAYOUT.log("claims"),
    benchmark:
        LAYOUT.benchmark("claims")
    localrule: True
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        seeds=SET_SEEDS,
    shell:
        "entropy-dynamics claims --scale {params.scale} {params.seeds} > {log} 2>&1"
