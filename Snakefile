# The whole reproduction. `snakemake` builds everything at the default scale, `snakemake table1` only Table 1 and its
# inputs, `snakemake --config scale=smoke` another scale; any file under results/ can be a target.
from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/claims.smk"


rule all:
    default_target: True
    input:
        rules.tables.input,
        rules.figures.input,
        rules.claims.output,
