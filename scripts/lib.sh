# Sourced by the scripts beside it: where things are, what is missing, how long it took.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CTRLMESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ctrlmesh}
host=$(uname -m)-unknown-linux-gnu
started=$SECONDS

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

say() { printf '[%3ds] %s\n' "$((SECONDS - started))" "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# step TEXT COMMAND...: runs the command, tells how long it took.
step() {
    local text=$1 from=$SECONDS
    shift
    say "$text"
    "$@" || die "$text: failed after $((SECONDS - from)) s"
    say "$text: done in $((SECONDS - from)) s"
}

# cargo ARG...: a person sees what it is at, a log is spared hundreds of lines.
compile() {
    if [ -t 2 ]; then cargo "$@"; else cargo "$@" --quiet; fi
}

# What cannot be built from here: compilers. Everything else is `testbed deps`.
need_compilers() {
    command -v cargo >/dev/null || die "missing: cargo, Rust 1.95 or later (https://rustup.rs)"
    command -v cc >/dev/null || install_package gcc libc6-dev
    command -v go >/dev/null || die "missing: go, 1.26 or later (https://go.dev/dl/)"
}

install_package() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "missing: the Debian packages $*"
    fi
    apt-get update -q && apt-get install -qy --no-install-recommends "$@"
}

need_root() {
    [ "$(id -u)" = 0 ] || die "run it as root: namespaces, iptables and a kubelet need it"
}

# The binaries of the images: static, so that the image needs nothing else.
build_static() {
    RUSTFLAGS="-C target-feature=+crt-static" compile build --release --target "$host" \
        -p ctrlmesh -p ctrlmesh-init
}
static_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$root/target}/$host/release"; }
