# The workflow, for `snakemake` in this folder.
include: "workflow/Snakefile"


rule default:  # an included file does not set the default target
    default_target: True
    input:
        rules.all.input,
