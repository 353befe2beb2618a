# Sourced by ./demo and ./test: sees to it that what they need is installed.

# need PACKAGE...: installs the Debian packages that are missing, if this user may; else says how.
need() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        echo "These Debian packages are missing. Install them, then start again:" >&2
        echo "    sudo apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    echo "installing ${missing[*]}" >&2
    local log
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -20 "$log" >&2
        echo "apt-get could not install: ${missing[*]}" >&2
        exit 1
    fi
    rm -f "$log"
}

# need_rust: finds cargo, also where rustup puts it without telling the shell.
need_rust() {
    command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
    if ! command -v cargo >/dev/null; then
        echo "No Rust toolchain: see https://rustup.rs (cargo 1.95 or later)" >&2
        exit 1
    fi
}

# What the build needs, what the demonstration needs to run, and what root's network needs.
BUILD_PACKAGES=(gcc libc6-dev pkg-config libdpdk-dev libclang-dev)
RUN_PACKAGES=(python3-numpy)
NAMESPACE_PACKAGES=(iproute2 ethtool procps)
# What `tally-perf allreduce` compares with.
PEER_PACKAGES=(python3-torch openmpi-bin python3-mpi4py)
