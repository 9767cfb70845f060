# Targets with a ## comment are printed by a bare `make`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-slow lint types golden stress mutants crosscheck bench check
.DEFAULT_GOAL := help

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[test,lint]'
	@touch $@

demo: .venv/.installed ## replay a recorded out-of-memory error
	$(BIN)/allocsim replay traces/gpt2-ragged-oom-torch2.15.pickle.gz

test: .venv/.installed ## the tests, on two cores
	$(BIN)/python -m pytest -n 2

test-slow: .venv/.installed ## the tests that take minutes
	$(BIN)/python -m pytest -n 2 -m slow

lint: .venv/.installed ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed ## mypy --strict
	$(BIN)/mypy

golden: .venv/.installed ## the model against what real PyTorch allocators answered
	$(BIN)/python -m tests.golden --model core --select all --jobs 2

stress: .venv/.installed ## ten million random operations, core beside the naive model
	$(BIN)/python -m tests.stress --ops 10000000 --jobs 2

mutants: .venv/.installed ## mutation testing of allocsim/core (an hour on two cores)
	$(BIN)/pip install -q -e '.[test,mutation]'
	$(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

crosscheck: .venv/.installed ## the golden scripts through PyTorch's own allocator (fetches 0.7 GB)
	$(BIN)/python -m allocsim.phantom fetch --torch 2.15
	$(BIN)/python -m pytest -n 2 -m slow tests/phantom tests/core

bench: .venv/.installed ## the speed measurements
	$(BIN)/python -m benchmarks.speed

check: lint types test ## all that must hold before a commit
