# The interface. `make demo` and `make test` do all set-up; they share .venv, made by whichever runs first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# an environment that was made with the system's torch stays that way
TORCH ?= $(if $(wildcard $(VENV)/.ready-system),system,pinned)
READY := $(VENV)/.ready-$(TORCH)

# of make test: many tests wait for processes, so that one more than the cores of a small machine pays
WORKERS ?= 3

export PYTHONPATH := $(CURDIR)
export JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION := 1

.PHONY: help demo test test-browser examples matrix lint synth deploy-local validate wheel soak mutants clean bench bench-gpu
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): requirements/dev.txt requirements/torch.txt requirements/triton.txt requirements/bootstrap.sh
	@PYTHON=$(PYTHON) TORCH=$(TORCH) bash requirements/bootstrap.sh $(VENV) $(READY)

demo: $(READY)  ## one fault, all the way round; FAULT=list prints the faults, INTERACTIVE=1 lets you approve
	@$(PY) -m examples.demo

test: $(READY)  ## all tests: unit, distributed, workflow, infra
	@$(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder $(PYTEST_ARGS)

.browser/.ready: requirements/browser.txt requirements/browser.sh $(READY)
	@bash requirements/browser.sh $(PY) .browser

test-browser: export PYTHONPATH := $(CURDIR):$(CURDIR)/.browser
test-browser: .browser/.ready  ## review page and report in a real Chromium; pictures into out/browser/
	@$(PY) -m pytest -m browser -p no:xdist tests/browser $(PYTEST_ARGS)

.examples/.ready: requirements/examples.txt requirements/examples.sh $(READY)
	@bash requirements/examples.sh $(PY) .examples

examples: export PYTHONPATH := $(CURDIR):$(CURDIR)/.examples
examples: .examples/.ready  ## each integration as a real job, healthy and with a fault; EXAMPLES="lightning plain" picks some
	@$(PY) -m examples.integrations $(EXAMPLES)

matrix: $(READY)  ## the published scenario table, every layout and mode, into out/matrix.json
	@$(PY) -m tests.matrix

lint: $(READY)  ## ruff, mypy, import-linter
	@failed=; for tool in "$(PY) -m ruff check ." "$(PY) -m ruff format --check ." "$(PY) -m mypy" \
	  "$(VENV)/bin/lint-imports --no-logo"; do $$tool || failed="$$failed [$$tool]"; done; \
	  [ -z "$$failed" ] || { echo "lint failed:$$failed"; exit 1; }

bench: $(READY)  ## what the checks cost on this machine, into out/bench.json; WRITE=1 also into docs/performance.md; QUICK=1, RESUME=1
	@OMP_NUM_THREADS=1 $(PY) -m tests.bench $(if $(WRITE),--write) $(if $(QUICK),--quick) $(if $(RESUME),--resume)

bench-gpu:  ## the same on one GPU, with the machine's own python3 and torch; prints JSON
	@$(PYTHON) -m tests.bench.gpu

synth: $(READY)  ## the CloudFormation template into cdk.out/, offline, no account
	@CDK_OUTDIR=cdk.out $(PY) app.py && ls cdk.out/*.template.json

node_modules/.package-lock.json: package-lock.json
	@npm ci --no-progress --loglevel=error

.venv-deploy/.ready: requirements/deploy-local.txt $(READY)
	@$(PY) -m venv --clear .venv-deploy
	@.venv-deploy/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/deploy-local.txt && touch $@

deploy-local: $(READY) node_modules/.package-lock.json .venv-deploy/.ready  ## the CDK CLI deploys into a local AWS; an alarm reaches the waiting approval
	@$(PY) -m tests.deploy.local --ministack-python .venv-deploy/bin/python

validate: $(READY) node_modules/.package-lock.json  ## the stack before validators that are not ours: state machine, template, IAM
	@$(PY) -m tests.deploy.validate

wheel: $(READY)  ## the agent's wheel into dist/
	@$(PY) -m pip wheel -q --no-deps --no-build-isolation -w dist .

soak: $(READY)  ## many random faults: through the whole demo, and the long forms of the safety proofs
	@$(PY) -m pytest -m soak --override-ini addopts="-ra --strict-markers --import-mode=importlib" tests

mutants: $(READY)  ## disables each safety guarantee's guard in turn; the test that holds it must fail
	@$(PY) -m tests.mutants.run $(MUTANTS)

clean:  ## remove what the targets made, except the environment
	rm -rf cdk.out demo-out out dist build *.egg-info
