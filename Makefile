# Everything sets itself up: uv is fetched into .uv/ if the machine has none, dependencies into .venv/.
SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := $(UV) run --no-sync

# without bytecode caches every worker process would compile thousands of modules anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint setup ui clean

demo: setup ## a real search on embedded data, in minutes
	@echo "== searching PFML's hyperparameters on embedded glyphs (two trials at a time on two cores)"
	@$(RUN) orchestrator search demo --storage runs
	@echo "== look at it in MLflow:   make ui   then open http://127.0.0.1:5000"

test: setup ## all quick tests
	@echo "== running the tests"
	@$(RUN) pytest -m "not slow" $(TESTS)

test-slow: setup ## the tests that take minutes
	@$(RUN) pytest -m slow $(TESTS)

lint: setup ## style, format and types
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy

ui: setup ## MLflow on this machine
	@$(RUN) orchestrator ui --storage runs

setup: .venv/.ready

.venv/.ready: pyproject.toml uv.lock | $(UV)
	@echo "== installing the dependencies into .venv (once, about 8 GB)"
	@$(UV) sync --frozen --quiet
	@touch $@

.uv/bin/uv:
	@echo "== fetching uv into .uv"
	@python3 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9'

clean: ## remove what setup and demo made
	rm -rf .venv .uv runs
