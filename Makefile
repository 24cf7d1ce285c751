# make demo: set up, train on the embedded data, print the result and where the report is.   make test: the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

unexport PYTHONDONTWRITEBYTECODE  # pytest rewrites the asserts of each test file once, not in each process at each run

.PHONY: demo test test-floor test-slow test-slurm test-multinode test-browser test-alternations test-anywhere torture fuzz lint clean

# 75: stopped by Ctrl-C and saved.
demo: $(VENV)/.installed
	$(BIN)/python main.py || [ $$? -eq 75 ]

test: $(VENV)/.tested
	$(BIN)/python -m pytest -m "not slow" -n 3 --dist loadfile

# The same tests on the lowest versions pyproject.toml allows.
test-floor: .venv-floor/.installed
	.venv-floor/bin/python -m pytest -m "not slow" -n 3 --dist loadfile

test-slow: $(VENV)/.tested
	$(BIN)/python -m pytest -m slow -n 2

# A real SLURM of two nodes, made and removed here: needs root and Debian, whose slurm-wlm and munge are installed if missing.
test-slurm: $(VENV)/.tested
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[slurm]'
	$(BIN)/python -m pytest tests/slurm/proof.py -s

# Two hosts with names, addresses and processes of their own, made of namespaces: needs root.
test-multinode: $(VENV)/.tested
	$(BIN)/python -m pytest tests/multinode/proof.py -s -rs

# Pages of reports and the page of the service in Debian's Chromium, which is installed if it is missing. DATA: folder of plants480 and text;
# OUT: pictures: make test-browser DATA=FOLDER
test-browser: $(VENV)/.tested
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest tests/browser/proof.py tests/browser/marks.py tests/browser/service.py -s

# The same hosts: a run on one host and on both in turn, stopped by SIGTERM 100 times: make test-alternations LAUNCHES=10
test-alternations: $(VENV)/.tested
	LAUNCHES=$(or $(LAUNCHES),100) $(BIN)/python -m pytest tests/multinode/alternations.py -s -rs

# The same files on 1, 2, 4 and 8 processes, and from a run that goes 1 -> 4 -> 2 -> 8 under kills, with trainer.deterministic=anywhere.
test-anywhere: $(VENV)/.tested
	$(BIN)/python -m pytest tests/anywhere/proof.py -s

# Kills at every place of a run, with a table, and 50 kills of `linnaeus prepare`: make torture N=200 JOBS=2. A second call continues; OUT: folder of its runs.
N ?= 200
JOBS ?= 2
OUT ?= /tmp/linnaeus-torture
torture: $(VENV)/.tested
	$(BIN)/python -m tests.faults.torture --kills $(N) --jobs $(JOBS) --out $(OUT)
	$(BIN)/python -m tests.faults.kill_prepare --kills 50

# Starts with mutated settings, manifests and photographs, mutated archives, bundles, and requests of the service and of completions. By default
# 10,000 of them are manifests, photographs and archives (2,000 + 1,000 + 7,000): make fuzz FUZZ=1000
FUZZ ?= 1000
fuzz: $(VENV)/.tested
	$(BIN)/python -m tests.faults.fuzz overrides --count $(FUZZ)
	$(BIN)/python -m tests.faults.fuzz manifests --count $$((2 * $(FUZZ)))
	$(BIN)/python -m tests.faults.fuzz photographs --count $(FUZZ)
	$(BIN)/python -m tests.faults.fuzz archives --count $$((7 * $(FUZZ)))
	$(BIN)/python -m tests.faults.fuzz bundles --count $$((4 * $(FUZZ)))
	$(BIN)/python -m tests.faults.fuzz requests --count $$((5 * $(FUZZ)))
	$(BIN)/python -m tests.faults.fuzz completions --count $$(($(FUZZ) / 10))

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# $(call install,VENV,ARGUMENTS). uv takes a quarter of the time of pip: 20 s in place of 84. It does not read the settings of pip, so they
# are passed on. If uv cannot be installed, or fails, pip installs.
pip_setting = "$$($(1)/bin/pip config list | sed -n "s/.*\.$(2)='\(.*\)'/\1/p" | head -n 1)"
define install
	@index=$(call pip_setting,$(1),index-url); cert=$(call pip_setting,$(1),cert); \
	[ -z "$$cert" ] || export SSL_CERT_FILE="$${SSL_CERT_FILE:-$$cert}"; \
	export UV_INDEX=$(call pip_setting,$(1),extra-index-url) UV_FIND_LINKS=$(call pip_setting,$(1),find-links); \
	echo "install packages into $(1)"; \
	$(1)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt uv && \
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python --index-strategy unsafe-best-match $${index:+--default-index "$$index"} $(2) || \
	$(1)/bin/pip install --quiet --disable-pip-version-check --no-compile $(2)
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),-c constraints.txt -e .)
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(call install,$(VENV),-c constraints.txt -e '.[test]')
	touch $@

.venv-floor/.installed: pyproject.toml constraints-floor.txt
	$(PYTHON) -m venv .venv-floor
	$(call install,.venv-floor,-c constraints-floor.txt -e '.[test]')
	touch $@

clean:
	rm -rf $(VENV) .venv-floor build *.egg-info .pytest_cache .ruff_cache .mypy_cache
