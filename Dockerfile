# The server and the command line in one static binary, on an empty base.
#
#   docker build -t bowline:v0.1.0 .
#
# Alpine's Rust links statically against musl by itself.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache build-base ca-certificates linux-headers
WORKDIR /src
COPY . .
# Without the demo, which brings a test bed.
RUN cargo build --release --locked --no-default-features --bin bowline \
 && mkdir -p /out/plugins /out/scratch /out/tmp \
 && cp target/release/bowline /out/bowline

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ /
# Nobody in particular: `bowline install` runs it as the same.
USER 65532:65532
ENTRYPOINT ["/bowline"]
CMD ["server"]
