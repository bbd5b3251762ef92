# Every target sets up what it needs. What is slow to fetch is cached in $LEYDEN_CACHE (~/.cache/leyden).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := $(or $(LEYDEN_VENV),.venv)
PYTHON := $(VENV)/bin/python
LEYDEN := $(PYTHON) -m leyden
BENCHMARKS := gateway stream learner reload
SEED ?= 0
ARGS ?=

# Compiled bytecode halves the start of every role.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONUNBUFFERED := 1

.PHONY: help setup services demo test faults lint bench examples up down status doctor

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 12

setup:
	@scripts/setup.sh

services: setup
	@$(LEYDEN) fetch

demo: services ## the whole loop on this machine: a model learns to use a calculator (SEED=0)
	@$(LEYDEN) fetch smollm2
	@$(LEYDEN) demo --seed $(SEED) $(ARGS)

test: services ## all tests, with real Kafka, MinIO and vLLM (ARGS='tests/avro -k codec')
	@$(PYTHON) -m pytest $(ARGS)

faults: services ## kills of every role in the middle of 2,000 rollouts, five rounds
	@LEYDEN_FAULT_ROUNDS=5 LEYDEN_FAULT_ROLLOUTS=2000 $(PYTHON) -m pytest tests/faults --timeout=7200 $(ARGS)

lint: setup ## ruff and pyright
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/pyright --pythonpath $(PYTHON)

bench: services ## every benchmark; the last line of each is its result as JSON
	@$(LEYDEN) fetch smollm2
	@failed=0; for name in $(BENCHMARKS); do $(PYTHON) -m benchmarks.$$name $(ARGS) || failed=1; done; exit $$failed

examples: services ## the tests of the examples
	@$(PYTHON) -m pytest tests/producers/test_demo.py $(ARGS)

up: services ## the stack in the foreground until Ctrl-C
	@$(LEYDEN) fetch smollm2
	@$(LEYDEN) up

down: setup ## end the stack of this folder, whatever became of `make up`
	@$(LEYDEN) down

status: setup ## health, versions and lag
	@$(LEYDEN) status

doctor: setup ## what this machine lacks
	@$(LEYDEN) doctor
