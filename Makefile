# make demo: set up, train on the embedded data, print the result and where the report is.   make test: the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-floor test-slow lint clean

demo: $(VENV)/.installed
	$(BIN)/python main.py

test: $(VENV)/.tested
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The same tests on the lowest versions pyproject.toml allows.
test-floor: .venv-floor/.installed
	.venv-floor/bin/python -m pytest -n 2 --dist loadfile

test-slow: $(VENV)/.tested
	$(BIN)/python -m pytest -m slow -n 2

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

.venv-floor/.installed: pyproject.toml constraints-floor.txt
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/pip install --quiet --disable-pip-version-check -c constraints-floor.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-floor build *.egg-info .pytest_cache .ruff_cache .mypy_cache
