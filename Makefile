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
generate: ## Write what is made from the Go sources: deep-copy methods, CRDs, the role, docs/api.md and docs/metrics.md.
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

# What the programs say they are, by --version and in the log of the manager: the tag of a release, or the commit.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
LDFLAGS = -s -w -X main.version=$(VERSION)

.PHONY: build
build: ## Build the programs into bin/; VERSION=... says what they call themselves.
	CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...

.PHONY: cross
cross: ## Build what the image has for amd64 and arm64, and check that it needs nothing else to run.
	for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -ldflags "$(LDFLAGS)" -o bin/linux-$$arch/ ./cmd/manager ./cmd/syncbarrier; \
	  go run ./hack/static $$arch bin/linux-$$arch/*; \
	done

# The cluster of these targets is that of your kubeconfig. IMG is an image that its nodes can pull.
IMG ?=

.PHONY: dist
dist: ## Write dist/install.yaml, the operator in one file, and dist/images.txt; IMG=... names the image.
	mkdir -p dist
	./hack/manifests.sh default $(IMG) > dist/install.yaml
	awk '$$1 == "image:" {print $$2}' dist/install.yaml | sort -u > dist/images.txt

.PHONY: install
install: ## Install the custom resource definitions into the cluster.
	kubectl apply --server-side -f config/crd/bases

.PHONY: deploy
deploy: ## Install the operator into the cluster, for all namespaces; IMG=... names its image.
	./hack/manifests.sh default $(IMG) | kubectl apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove the operator from the cluster. SyncSchemas and their definitions stay, see docs/uninstall.md.
	kubectl delete --ignore-not-found mutatingwebhookconfigurations,validatingwebhookconfigurations syncbarrier # first: nobody answers them from here on
	kubectl delete --ignore-not-found -k config/manager
	kubectl delete --ignore-not-found -k config/rbac
	kubectl delete --ignore-not-found validatingadmissionpolicies,validatingadmissionpolicybindings syncbarrier-start-gate syncbarrier-secret-use syncbarrier-secret-use-jobs
	kubectl delete --ignore-not-found clusterroles,clusterrolebindings syncbarrier-webhook syncbarrier-start-gate # no others: config/namespaced has some

.PHONY: run
run: ## Run the operator on this machine for the cluster; IMG=... names the image of its workers, ARGS=... adds options.
	go run ./cmd/manager --leader-elect=false --log-format=text --metrics-bind-address=0 --worker-image=$(or $(IMG),syncbarrier) $(ARGS)

.PHONY: docker-build
docker-build: ## Build the image for this machine, with docker buildx; IMG=... names it.
	docker buildx build --load --build-arg VERSION=$(VERSION) -t $(or $(IMG),syncbarrier) .

.PHONY: docker-push
docker-push: ## Build the image for amd64 and arm64 and push it; IMG=... names it, with its registry.
	@test -n "$(IMG)" || { echo "say where to: make docker-push IMG=registry.example/syncbarrier:1" >&2; exit 2; }
	docker buildx build --push --platform linux/amd64,linux/arm64 --build-arg VERSION=$(VERSION) -t $(IMG) .

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

.PHONY: quickstart
quickstart: ## Show the operator at work on a cluster: an application goes from version 6 to 7, with a live picture.
	./hack/quickstart.sh

.PHONY: e2e
e2e: ## Run the stories of test/e2e on a real cluster (that of KUBECONFIG, or one that is started and ended).
	./hack/e2e.sh

.PHONY: e2e-all
e2e-all: ## The same, with every fault in every phase.
	E2E_ALL=1 ./hack/e2e.sh

.PHONY: soak
soak: ## Take a loaded application through SOAK_ROUNDS versions (30), disturbed in each, and check every promise after each.
	SOAK_ROUNDS=$${SOAK_ROUNDS:-30} ./hack/e2e.sh --ginkgo.focus=Soak

.PHONY: clean
clean: ## Remove what was built. Caches outside the checkout stay.
	rm -rf bin dist
