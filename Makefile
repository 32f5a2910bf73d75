# SPDX-License-Identifier: Apache-2.0
# Every entry point; `make help` lists them. Each target does the set-up it needs, once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export BUNSHIN_HOME ?= /var/lib/bunshin

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## solve a web task in real Chromium, fork it into four branches, save demo.png
	$(BIN)/bunshin demo --output demo.png

.PHONY: test
test: setup frameworks ## the tests, fast ones first: all but those of test-large
	BUNSHIN_MUST_WORK=1 tests/run

.PHONY: test-large
test-large: setup desktop sites ## the tests of desktops and sites, whose images take long to build
	BUNSHIN_MUST_WORK=1 tests/run -m large

.PHONY: setup
setup: root system core criu image ## packages, environment, C core, CRIU and images; idempotent

.PHONY: root
root:
	@((EUID == 0)) || { echo "bunshin: building and running workspaces needs root: run it as root, or by sudo" >&2; exit 1; }

.PHONY: system
system: ## the Debian packages that building and running need
	@./setup-system

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

.PHONY: venv
venv: $(VENV)/.installed ## the virtual environment with our package in it
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml setup.py bunshin_gym/_build_native.py \
		$(shell find csrc -name '*.[ch]')
	@echo "== python packages and the C core"
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@

# Plain `torch` would come with CUDA, several gigabytes of it. Where the index has no CPU build, PyTorch's own has.
TORCH := torch==2.13.0+cpu
.PHONY: frameworks
frameworks: venv $(VENV)/.frameworks ## torch (CPU) and the RL frameworks that the examples use
$(VENV)/.frameworks: pyproject.toml
	@echo "== torch and RL frameworks"
	$(BIN)/pip install -q --no-compile '$(TORCH)' || \
		$(BIN)/pip install -q --no-compile '$(TORCH)' --index-url https://download.pytorch.org/whl/cpu
	$(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
		print(*(line for name in ("ray", "sb3", "torchrl", "trl") for line in extras[name]), sep="\n")' > $(VENV)/frameworks.txt
	$(BIN)/pip install -q --no-compile '$(TORCH)' -r $(VENV)/frameworks.txt
	@touch $@

.PHONY: core
core: venv ## the C core, as the cffi extension

.PHONY: criu
criu: ## our CRIU, fetched, verified, patched, under a private prefix
	@third_party/criu/build.sh

.PHONY: image
image: core ## the workspace images that the demo and the tests use
	@$(BIN)/bunshin image build minimal browser

.PHONY: desktop
desktop: core ## the desktop image, and what judging desktop tasks needs
	@$(BIN)/bunshin image build desktop
	@$(BIN)/bunshin tasks prepare

.PHONY: sites
sites: core ## the images of the shop and the forum, and what judging their tasks needs
	@$(BIN)/bunshin image build shop forum
	@$(BIN)/bunshin tasks check shop
	@$(BIN)/bunshin tasks check forum

.PHONY: test-tasks
test-tasks: setup desktop sites ## every task that has a scripted solution, solved in forks and freshly booted
	BUNSHIN_MUST_WORK=1 BUNSHIN_ALL_TASKS=1 $(BIN)/pytest tests/desktop/test_osworld_real.py -k solution
	BUNSHIN_MUST_WORK=1 BUNSHIN_ALL_TASKS=1 $(BIN)/pytest tests/envs/test_sites_real.py tests/envs/test_parity.py

.PHONY: test-zdtm
test-zdtm: criu ## CRIU's own test suite against our build
	third_party/criu/zdtm.sh

.PHONY: test-zdtm-guests
test-zdtm-guests: setup ## its programs as guests of workspaces that are forked, judging themselves on both sides
	$(BIN)/python tests/zdtm/guests.py

.PHONY: kmod
kmod: ## the kernel module, for the running kernel or KDIR=
	$(MAKE) -C kmod

.PHONY: test-kmod
test-kmod: ## the kernel module, in virtual machines with Debian's 6.1 and 6.12
	tests/kmod/run

.PHONY: bench
bench: setup ## every benchmark, tables of ratios against a peer
	@for b in bench/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

.PHONY: lint
lint: core ## ruff, mypy, clang-format, codespell, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.[ch]' 'tests/c/*.[ch]' 'tests/guests/*.[ch]')
	$(BIN)/codespell

.PHONY: fmt
fmt: core ## write the format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.[ch]' 'tests/c/*.[ch]' 'tests/guests/*.[ch]')

.PHONY: docs
docs: core ## the documentation site, into build/site
	$(BIN)/mkdocs build --strict

.PHONY: gc
gc: core ## reap what killed processes left behind
	$(BIN)/bunshin gc

.PHONY: clean
clean: ## what was built in this folder; not the images and CRIU in BUNSHIN_HOME
	rm -rf build dist $(VENV) *.egg-info bunshin_gym/_native*.so bunshin_gym/_native.c
