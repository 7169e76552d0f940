# Sourced by the scripts next to it: where things are, what is missing, how long it took.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CTRLMESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ctrlmesh}
host=$(uname -m)-unknown-linux-gnu
target=${CARGO_TARGET_DIR:-$root/target}/$host
started=$SECONDS

# Everything is built once, for tests and images alike: static, since an image holds nothing else.
# The target is named so that the flag is not that of build scripts and procedural macros as well.
export CARGO_BUILD_TARGET=$host
static="-C target-feature=+crt-static"
case ${RUSTFLAGS-} in
    *"$static"*) ;; # One script called another: the same flags twice are other flags to cargo.
    *) export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }$static" ;;
esac

# The programs, by the selection of packages of `cargo test --workspace`: another has other features
# and compiles the dependencies once more. (One test asks for the features of the tests.)
programs=(--workspace --bins --test golden)

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

# Where the steps of a script are written down for the table at the end of scripts/test: one script may
# call another.
export CTRLMESH_STEPS=${CTRLMESH_STEPS-}

say() { printf '[%3ds] %s\n' "$((SECONDS - started))" "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# step TEXT COMMAND...: runs the command, tells how long it took.
step() {
    local text=$1 from=$SECONDS cpu
    shift
    cpu=$(cpu_seconds)
    say "$text"
    "$@" || die "$text: failed after $((SECONDS - from)) s"
    say "$text: done in $((SECONDS - from)) s"
    note_step "$text" $((SECONDS - from)) "$(awk "BEGIN { print $(cpu_seconds) - $cpu }")"
}

# note_step TEXT WALL CPU: writes a step down, in seconds.
note_step() {
    if [ -n "$CTRLMESH_STEPS" ]; then printf '%s\t%s\t%s\n' "$@" >>"$CTRLMESH_STEPS"; fi
}

# Seconds of processor time of all commands that have ended: user and system are the fields 16 and 17 of
# proc_pid_stat(5), in hundredths. (A subshell has children of its own, so its parent is asked.)
cpu_seconds() {
    awk '{ sub(/.*\) /, ""); printf "%.2f", ($14 + $15) / 100 }' "/proc/$$/stat"
}

# cargo ARG...: a person sees what it is at; a log gets a line every ten seconds and no hundreds more.
compile() {
    if [ -t 2 ]; then cargo "$@"; else { cargo "$@" 2>&1 >&3 | count_crates; } 3>&1; fi
}

# count_crates: copies cargo's warnings and errors, and counts the rest.
count_crates() {
    local line state count=0 last=$SECONDS
    while true; do
        state=0
        IFS= read -r -t 10 line || state=$?
        # Above 128 the time is over; else there is no more to read.
        if [ "$state" != 0 ] && [ "$state" -le 128 ]; then break; fi
        if [ "$state" = 0 ]; then
            case $line in
                *" Compiling "*) count=$((count + 1)) ;;
                *" Downloading "* | *" Downloaded "* | *" Locking "* | *" Updating "* | *" Adding "*) ;;
                *" Blocking "* | *" Finished "* | *" Executable "*) ;;
                *) printf '%s\n' "$line" >&2 ;;
            esac
        fi
        if [ $((SECONDS - last)) -ge 10 ]; then
            last=$SECONDS
            say "  $count crates begun"
        fi
    done
}

# How often each branch of the programs runs, by which the compiler inlines and lays out: see
# scripts/release. A part that it does not know, because the source or the compiler is another, is
# compiled without.
profile=$root/deploy/ctrlmesh.profdata
# The functions that run at all, which the linker puts together: fewer pages are in memory.
order=$root/deploy/ctrlmesh.order

# optimised ARG...: cargo build of what is shipped.
optimised() {
    local by="-C profile-use=$profile -C llvm-args=-no-pgo-warn-mismatch"
    # Cargo does not look into these files.
    by+=" --cfg counted_as_$(cat "$profile" "$order" | cksum | cut -d ' ' -f 1)"
    # Elsewhere the linker is not rustc's own.
    if [ "$host" = x86_64-unknown-linux-gnu ]; then
        by+=" -C link-arg=-Wl,--symbol-ordering-file=$order,--no-warn-symbol-ordering"
    fi
    RUSTFLAGS="$RUSTFLAGS $by" compile build --release "$@"
}

# What the bench runs next to the programs.
bench_tools() {
    local program
    for program in haproxy valgrind; do
        command -v $program >/dev/null || step "installing $program" install_package $program
    done
    step "building the clients" go build -C tests/e2e/clients/go -o "$target/bench-clients" .
    step "building the bench" compile build "${programs[@]}"
}

# What cannot be built from here: compilers. Everything else is `testbed deps`.
need_rust() {
    command -v cargo >/dev/null || die "missing: cargo, Rust 1.95 or later (https://rustup.rs)"
    command -v cc >/dev/null || install_package gcc libc6-dev
}

need_compilers() {
    need_rust
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

# begin_work: a directory for the files of this run, $work, which goes when the script ends in any way.
begin_work() {
    work=$(mktemp -d)
    : >"$work/began"
    machine=
    trap end_work EXIT
    trap 'exit 130' INT TERM HUP
}

end_work() {
    # A process group of its own: the build of Kubernetes is many processes.
    if [ -n "$machine" ]; then kill -TERM -- "-$machine" 2>/dev/null || true; fi
    rm -rf "$work" ${CTRLMESH_STEPS:+"$CTRLMESH_STEPS"}
}

# leave_work: before exec, by which another program takes over.
leave_work() { trap - EXIT INT TERM HUP; }

# prepare_machine [WHAT...]: installs what is missing, and has `testbed` make each of WHAT while cargo goes
# on, with what it leaves of the processors. `testbed` is among the first programs that cargo builds.
prepare_machine() {
    # The processes of a job have a group of their own. `test-runner` ends those with this mark, too.
    set -m
    CTRLMESH_TEST_GROUP=$$-kubernetes in_background "$@" >/dev/null &
    machine=$!
    set +m
}

in_background() {
    local testbed=$target/debug/testbed
    until [ "$testbed" -nt "$work/began" ] || [ -e "$work/built" ] || [ ! -e "$work" ]; do sleep 1; done
    # The tests run already, behind machine_is_ready, and build Kubernetes themselves.
    [ -e "$work" ] || return 0
    flock "$work/began" "$testbed" deps
    local what
    for what in "$@"; do nice -n 10 "$testbed" "$what"; done
}

# machine_is_ready: once cargo has built all. Names what is missing and cannot be installed.
machine_is_ready() {
    : >"$work/built"
    flock "$work/began" "$target/debug/testbed" deps
}
