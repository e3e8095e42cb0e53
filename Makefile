# make perf: measure and judge. make test: the engine's own tests. make lint: style, types and deployment files.
# make test-gpu: the tests that need a GPU, alone on it; `make test` skips them where there is none.
# make coverage: the tests again, much slower; they must reach 90 % of what a CPU can. Each works alone on a fresh clone.
# ARGS goes to pytest: make perf ARGS="-m gpu --gate". PYTHON chooses the interpreter, VENV the environment's folder.

VENV ?= .venv
ARGS ?=
# Compiling every module of torch at once takes a minute; Python compiles those that are imported, and keeps them. Where
# the image of a container sets this variable, each process would compile torch anew and start half as fast.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
PERF_INSTALLED = $(VENV)/.installed-perf
TEST_INSTALLED = $(VENV)/.installed-test
GPU_INSTALLED = $(VENV)/.installed-gpu
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 10))

ifeq ($(origin PYTHON), undefined)
PYTHONS = python3 python3.13 python3.12 python3.11 python3.10
else
PYTHONS = $(PYTHON)
endif

.DELETE_ON_ERROR:
.PHONY: perf test test-gpu lint coverage

perf: $(PERF_INSTALLED)
	$(VENV)/bin/python -m pytest perf_tests $(ARGS)

# Three workers of one thread each keep two cores busy, since some tests wait for processes. The plugin stays out, since it
# refuses workers that share a device; the tests that are about it load it. ARGS="-n 0" debugs in one process.
# A test that hangs ends its worker after ten minutes, with the stacks of all threads; SIGALRM belongs to the tests.
TESTS = -m pytest tests -n 3 --dist worksteal -p no:gpugate.plugin --timeout 600 --timeout-method thread $(ARGS)
test: $(TEST_INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/python $(TESTS)

# Tests that measure time or profile have the GPU alone; the others share it. What ARGS selects runs in one process: a half
# of it without a test would be an error. Without a GPU each is an error, not a row of skips.
GPU_TESTS = GPUGATE_GPU_TESTS_MUST_RUN=1 $(VENV)/bin/python -m pytest tests/gpu -p no:gpugate.plugin --timeout 1200
test-gpu: $(GPU_INSTALLED)
ifeq ($(ARGS),)
	$(GPU_TESTS) -m "not alone" -n 4
	$(GPU_TESTS) -m alone
else
	$(GPU_TESTS) $(ARGS)
endif

coverage: $(TEST_INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m coverage run $(TESTS)
	$(VENV)/bin/python -m coverage combine
	$(VENV)/bin/python -m coverage report

lint: $(TEST_INSTALLED)
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/actionlint -config-file .github/actionlint.yaml -shellcheck $(VENV)/bin/shellcheck .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --no-progress --quiet --persona=pedantic .github
	$(VENV)/bin/hadolint deploy/Dockerfile
	$(VENV)/bin/shellcheck .ci/run deploy/compare.sh deploy/slurm/nightly.sh deploy/slurm/merge.sh
	$(VENV)/bin/kubernetes-validate --strict --quiet deploy/kubernetes/nightly.yaml

$(PERF_INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[workloads]'
	@touch $@

# What the tests need includes what measuring needs: both are then up to date.
$(TEST_INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[workloads,dev]'
	@touch $(PERF_INSTALLED) $@

$(GPU_INSTALLED): $(TEST_INSTALLED)
	$(INSTALL) -e '.[video]'
	@touch $@

$(VENV)/bin/python:
	@for python in $(PYTHONS); do \
	  if "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null; then exec "$$python" -m venv $(VENV); fi; \
	done; \
	echo "no Python 3.10 or newer among: $(PYTHONS); install one or run make PYTHON=/path/to/python3" >&2; \
	exit 1
