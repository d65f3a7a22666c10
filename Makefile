# Two commands: `make demo` and `make test`. Each sets up what it needs.
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-deployment torture check bench format clean

demo: $(VENV)/ready
	$(BIN)/fedfomo demo

test: $(VENV)/ready
	$(BIN)/pytest

test-deployment: $(VENV)/ready
	$(BIN)/pytest -m deployment

torture: $(VENV)/ready
	$(BIN)/pytest tests/torture --torture --numprocesses 2
	$(BIN)/python tests/scorecard.py

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(VENV)/ready
	for name in paper_workload small_clients growth large_model model_store private_step membership; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; \
	done

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV)

$(VENV)/ready: requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
