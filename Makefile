# Everything sets itself up in .venv, with nothing but Python 3.11+ and pip there before.
PYTHON ?= python3
BIN := .venv/bin
SCALE ?= laptop

.PHONY: reproduce smoke report test lint clean
.DEFAULT_GOAL := reproduce

reproduce: .venv/ready  ## the paper at the laptop scale: all tables and figures into results/laptop
	$(BIN)/snakemake || { $(BIN)/entropy-dynamics claims; exit 1; }  # what is there is judged all the same
	$(BIN)/snakemake --quiet all --report results/laptop/report.html
	@echo && cat results/laptop/tables/table1.md && echo && cat results/laptop/claims.md && echo
	@echo "Everything on one page: results/laptop/report.html"

smoke: .venv/ready  ## the main rules with a few steps, in minutes: results/smoke
	$(BIN)/snakemake --config scale=smoke
	$(BIN)/snakemake --config scale=smoke --quiet all --report results/smoke/report.html

report: .venv/ready  ## only the page with all tables and figures, from results that are there: make report SCALE=smoke
	$(BIN)/snakemake --config scale=$(SCALE) --report results/$(SCALE)/report.html

test: .venv/ready  ## all tests, the whole smoke scale among them
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check --diff Snakefile workflow
	$(BIN)/snakemake --lint

clean:  ## removes results and caches; the environment stays
	rm -rf results/smoke results/laptop .snakemake .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@
