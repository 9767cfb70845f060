# Targets with a ## comment are printed by a bare `make`.
PYTHON ?= python3
BIN := .venv/bin
# For `make crosscheck`: an interpreter with a CUDA build of torch, and how much to run.
PYTHON_TORCH ?=
OPS ?= 100000
# What a compiled core may change: not the tests of the tree itself, of laws and formulas, nor of
# real PyTorch.
COMPILED_TESTS := $(addprefix tests/,core stress replaying metrics workload explain top compare gate ranks watch \
	recording lint stats risk fitting scale tune step picture report cli golden editing colocate)

# Modules that infer what a recording does not show, as a list of TOML.
comma := ,
INFERS := $(patsubst %,"allocsim/%.py"$(comma),inference/inferred_calls inference/evidence inference/search \
	inference/calls_without_entry simulation/plan simulation/what_if)

.PHONY: help dist docs laws demo test test-slow notebooks lint types golden stress fuzz mutants mutants-core mutants-inference crosscheck bench wheel-compiled compiled bench-compiled workflows check check-all
.DEFAULT_GOAL := help

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	# The first pip with dependency groups.
	$(BIN)/pip install -q 'pip>=25.1'
	$(BIN)/pip install -q -e . --group dev
	@touch $@

demo: .venv/.installed ## replay a recorded out-of-memory error
	$(BIN)/allocsim replay traces/gpt2-ragged-oom-torch2.15.pickle.gz

test: .venv/.installed ## the tests, on two cores
	$(BIN)/python -m pytest -n 2

test-slow: .venv/.installed ## the tests that take minutes
	$(BIN)/python -m pytest -n 2 -m slow

notebooks: .venv/.installed ## run the notebooks and put what they show into them
	$(BIN)/python -m tests.notebooks --write

.venv/.docs-installed: .venv/.installed
	$(BIN)/pip install -q --group docs
	@touch $@

docs: .venv/.docs-installed ## the documentation site, in build/docs/html
	rm -rf build/docs/source
	mkdir -p build/docs
	cp -r docs build/docs/source
	cp -r notebooks CONTRIBUTING.md CHANGELOG.md build/docs/source
	$(BIN)/python -m tests.api build/docs/source
	$(BIN)/sphinx-build -q -W --keep-going -b html build/docs/source build/docs/html

lint: .venv/.installed ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed ## mypy --strict
	$(BIN)/mypy

golden: .venv/.installed ## the model against what real PyTorch allocators answered
	$(BIN)/python -m tests.golden --model core --select all --jobs 2

stress: .venv/.installed ## ten million random operations and 200,000 what-ifs beside the naive model
	$(BIN)/python -m tests.stress --ops 10000000 --jobs 2
	$(BIN)/python -m tests.stress --what-ifs 200000 --jobs 2

fuzz: .venv/.installed ## a million changed inputs through every reader, then inputs sought by atheris
	$(BIN)/python -m tests.fuzz --inputs 1000000 --jobs 2
	$(BIN)/pip install -q --group fuzz
	mkdir -p build/fuzz
	for seed in 1 2 3 4 5; do \
		$(BIN)/python -m tests.fuzz.guided --inputs 20000 --seed $$seed --keep build/fuzz || exit 1; \
	done

mutants: mutants-core mutants-inference ## mutation testing of the core and of the inference (hours)

mutants-core: .venv/.installed
	$(BIN)/pip install -q --group mutation
	$(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

mutants-inference: .venv/.installed
	$(BIN)/pip install -q --group mutation
	# In a copy, because mutmut reads what to change and which tests to run from pyproject.toml.
	rm -rf build/mutants
	mkdir -p build/mutants
	git ls-files -z -c -o --exclude-standard | xargs -0 cp --parents -t build/mutants
	sed -i -e '/^only_mutate/s|=.*|= [$(INFERS)]|' \
		-e '/^pytest_add_cli_args_test_selection/s|=.*|= ["tests/replaying"]|' \
		build/mutants/pyproject.toml
	cd build/mutants && ../../$(BIN)/mutmut run --max-children 2
	cd build/mutants && ../../$(BIN)/mutmut results

laws: .venv/.installed ## the laws of `fit --engine laws`, by the PyTorch at PYTHON_TORCH (hours)
	$(BIN)/python -m benchmarks.laws --python "$(PYTHON_TORCH)"

crosscheck: .venv/.installed ## the model beside real PyTorch (fetches 0.7 GB; docs/commands/crosscheck.md)
	$(BIN)/python -m allocsim.phantom fetch --torch 2.15
	ALLOCSIM_TORCH_PYTHON="$(PYTHON_TORCH)" $(BIN)/python -m pytest -n 2 -m slow tests/phantom tests/verify tests/core
	$(BIN)/allocsim crosscheck --torch all --ops $(OPS) --jobs 2
	$(if $(PYTHON_TORCH),$(BIN)/allocsim crosscheck --phantom --python $(PYTHON_TORCH) --ops $(OPS) --jobs 2)

bench: .venv/.installed ## the speed measurements
	$(BIN)/python -m benchmarks.speed

wheel-compiled: ## a wheel for this platform and Python whose core is compiled, in dist/
	$(PYTHON) -m venv .venv-compiled
	.venv-compiled/bin/pip install -q 'pip>=25.1'
	# Built from a copy, beside which the tests find no sources of the package.
	rm -rf .venv-compiled/source
	mkdir -p .venv-compiled/source dist
	git ls-files -z -c -o --exclude-standard | xargs -0 cp --parents -t .venv-compiled/source
	ALLOCSIM_COMPILED=1 .venv-compiled/bin/pip wheel -q --no-deps -w dist .venv-compiled/source

compiled: wheel-compiled ## such a wheel, installed: the tests of core, engine, recordings and commands
	.venv-compiled/bin/pip install -q --group test
	.venv-compiled/bin/pip install -q "$$(ls -t dist/*-cp*.whl | head -1)"
	.venv-compiled/bin/pip install -q --force-reinstall --no-deps "$$(ls -t dist/*-cp*.whl | head -1)"
	rm -rf .venv-compiled/beside
	mkdir .venv-compiled/beside
	cd .venv-compiled/source && cp -r tests benchmarks traces docs notebooks README.md CITATION.cff CONTRIBUTING.md pyproject.toml \
		../beside
	cd .venv-compiled/beside && ../bin/python -m pytest -q -n 2 $(COMPILED_TESTS)

dist: .venv/.installed ## the source archive, the pure wheel and this Python's compiled wheel, checked
	$(BIN)/pip install -q --group build
	rm -rf dist
	ALLOCSIM_COMPILED=0 $(BIN)/python -m build -q
	ALLOCSIM_COMPILED=1 $(BIN)/python -m build -q --wheel
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/pyroma --skip-tests AuthorEmail --min 10 .

workflows: .venv/.installed ## lint the workflows; run their steps with python -m tests.workflows
	$(BIN)/pip install -q --group workflows
	$(BIN)/zizmor --offline --strict-collection .github/workflows
	# Its package fetches the program from GitHub while it is installed.
	if $(BIN)/pip install -q --group actionlint; then $(BIN)/actionlint; else echo "actionlint did not run"; fi

bench-compiled: compiled ## the speed measurements of that installation
	cd .venv-compiled/beside && ../bin/python -m benchmarks.speed

check: lint types test ## all that must hold before a commit

check-all: check test-slow golden compiled ## all that must hold before a release
