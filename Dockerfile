# The image of the operator and of the backfill workers: two static programs and
# the certificates of public authorities, nothing else.
#
#   docker buildx build --load -t syncbarrier .      (make docker-build, make docker-push)
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=development
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w -X main.version=$VERSION" -o /out/ ./cmd/manager ./cmd/syncbarrier

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/manager /manager
COPY --from=build /out/syncbarrier /syncbarrier
# Not root, and by number, so that runAsNonRoot can be checked.
USER 65532:65532
ENTRYPOINT ["/manager"]
