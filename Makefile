# `make` lists the targets. The two that count: `make verify` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: tools
tools: ## Install what the tests need and this machine lacks (PostgreSQL, PgBouncer, npm).
	./hack/install-tools.sh

.PHONY: demo
demo: ## Show a schema change with its barrier, from start to end, on a database of its own.
	./hack/demo.sh

.PHONY: test
test: ## Check that generated files are current, and run all tests against real databases (installs what is missing).
	./hack/install-tools.sh
	./hack/check-generated.sh
	./hack/test.sh

.PHONY: generate
generate: ## Write the deep-copy methods and the CRDs from the types in api/.
	./hack/generate.sh

.PHONY: fmt
fmt: ## Format the Go code.
	./hack/tool golangci-lint fmt

.PHONY: lint
lint: ## Run the linters, which also hold the direction of imports.
	./hack/tool golangci-lint run

.PHONY: verify
verify: ## Fail if generate, fmt or go mod tidy would change anything, or a linter complains.
	./hack/check-generated.sh
	./hack/tool golangci-lint fmt --diff
	go mod tidy -diff
	$(MAKE) --no-print-directory lint

.PHONY: build
build: ## Build the programs into bin/.
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

.PHONY: bench
bench: ## Measure the speeds that docs/design.md promises, side by side.
	go test ./bench -run "^$$" -bench . -benchtime 1x -timeout 60m | grep -E "\||FAIL|panic|bench_test"

.PHONY: cluster-up
cluster-up: ## Start a Kubernetes of one node with real containers on this machine (root, Linux).
	./hack/cluster/up.sh

.PHONY: cluster-down
cluster-down: ## End the cluster of cluster-up and remove all of it.
	./hack/cluster/down.sh

.PHONY: images
images: ## Build the images of the operator and the sample application, and load them into the cluster.
	mkdir -p dist/images
	./hack/images.sh operator clinic postgres | tee dist/images/references
	./hack/cluster/load.sh operator clinic postgres

.PHONY: clean
clean: ## Remove what was built. Caches outside the checkout stay.
	rm -rf bin dist
