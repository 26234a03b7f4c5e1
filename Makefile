# Everything sets itself up: uv is fetched into .uv/ if the machine has none, dependencies into .venv/.
SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
BIN := .venv/bin

# without bytecode caches every worker process would compile thousands of modules anew
unexport PYTHONDONTWRITEBYTECODE

# tests run PROCESSES files at a time, the longest first (tests/conftest.py), not those with the most tests
PYTEST = $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 10

# at their usual niceness Ray's workers would wait for the other file's test
test test-slow: export RAY_worker_niceness := 0

.PHONY: demo test test-slow gpu gpu-wheels coverage lint setup ui package versions site methods-page claims-table what-works tables-page goldens clean

demo: setup ## a real search on embedded data, in minutes
	@echo "== searching PFML's hyperparameters on embedded glyphs (two trials at a time on two cores)"
	@$(BIN)/orchestrator search demo --storage runs
	@echo "== look at it in MLflow:   make ui   then open the addresses above"

test: PROCESSES := $(or $(PROCESSES),2)
test: setup ## all quick tests, PROCESSES=2 files at a time
	@echo "== running the tests"
	@$(PYTEST) -m "not slow" $(TESTS)

test-slow: PROCESSES := $(or $(PROCESSES),3)
test-slow: setup ## the tests that take minutes, PROCESSES=3 files at a time, as half of it is waiting; MINUTES=60 of them
	@$(PYTEST) -m slow $(if $(MINUTES),--minutes $(MINUTES)) $(TESTS)

gpu: ## all that needs a GPU, in at most nine minutes; PART=5 or PART=5-, WHEELS=folder (benchmarks/gpu.py)
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) benchmarks/gpu.py $(if $(PART),--part $(PART)) \
		$(if $(WHEELS),--wheels $(WHEELS)) $(if $(DEVICE),--device $(DEVICE))

gpu-wheels: setup ## what a GPU machine without a network lacks, in WHEELS=build/gpu-wheels; GPU_PYTHON=3.12, ALSO="timm"
	@$(UV) run --quiet --no-project --with pip python benchmarks/gpu_wheels.py $(or $(WHEELS),build/gpu-wheels) \
		--python $(or $(GPU_PYTHON),3.12) $(if $(ALSO),--also $(ALSO))

coverage: export RAY_worker_niceness := 0
coverage: setup ## the share of the code that the quick tests run, by file
	@$(UV) run --frozen --no-sync --with 'pytest-cov>=6' pytest -m "not slow" --numprocesses 2 --dist loadfile \
		--quiet --cov orchestrator --cov methods --cov-branch --cov-report term:skip-covered

lint: setup ## style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

ui: setup ## MLflow on this machine
	@$(BIN)/orchestrator ui --storage runs

package: setup ## the wheels (all of it; what only looks, without torch) and the source archive, checked, in dist/
	@rm -rf dist
	@$(UV) build --quiet
	@$(BIN)/python -c 'from orchestrator.plugins import Path, enclose; enclose(Path("deploy/review/methods.json"))'
	@$(UV) build --quiet --wheel deploy/review --out-dir dist
	@$(UV) run --quiet --no-project --with twine twine check --strict dist/*
	@$(UV) run --quiet --no-project --with check-wheel-contents check-wheel-contents --ignore W009 dist/*.whl

versions: setup ## which versions of the packages and of MLflow's server work, into docs/versions.md; ONLY="mlflow 3.5", MINUTES=12
	@$(BIN)/python benchmarks/versions.py $(if $(ONLY),--only "$(ONLY)") $(if $(MINUTES),--minutes $(MINUTES))

site: setup ## the documentation as a site, in site/
	@$(BIN)/python docs/build_site.py

methods-page: setup ## docs/methods.md, from the installed methods and their checks
	@$(BIN)/python docs/write_methods_page.py

claims-table: setup ## the table of docs/claims.md, from the shipped claims and their verdicts
	@$(BIN)/python docs/write_claims_table.py

what-works: setup ## docs/what_works.md, from the claims' verdicts, the tabular benchmark and the record
	@$(BIN)/python docs/write_what_works.py

tables-page: setup ## docs/tables.md, from the papers' tables and the presets
	@$(BIN)/python docs/write_tables_page.py

setup: .venv/.ready

.venv/.ready: pyproject.toml uv.lock | $(UV)
	@echo "== installing the dependencies into .venv (once, about 8 GB)"
	@$(UV) sync --frozen --quiet
	@[ ! -x .uv/bin/uv ] || ln -sf ../../.uv/bin/uv $(BIN)/uv  # found where the environment is active
	@touch $@

.uv/bin/uv:
	@echo "== fetching uv into .uv"
	@python3 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9'

goldens: setup ## tests/goldens and tests/presets as the program is now; review the difference
	@$(BIN)/pytest --quiet --update-goldens tests/report/test_goldens.py tests/config/test_presets.py tests/config/test_public_options.py

clean: ## remove what setup and demo made
	rm -rf .venv .uv build runs
