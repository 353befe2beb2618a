# Sourced by ./demo and ./test: sees to it that what they need is installed.

# Python keeps what it compiles, also where the environment says not to: PyTorch takes seconds.
export PYTHONDONTWRITEBYTECODE=

# need PACKAGE...: installs the Debian packages that are missing. Without root, names them and
# exits. On another distribution, looks for their contents, names what is missing, and exits.
need() {
    local missing=() package
    for package in "$@"; do
        is_there "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if ! is_debian; then
        describe "${missing[@]}" >&2
        exit 1
    fi
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

is_debian() { [ "$(. /etc/os-release 2>/dev/null && echo "${ID:-}")" = debian ]; }

# is_there PACKAGE: whether it is installed. For DPDK, and on other distributions: whether its
# contents are found.
is_there() {
    if [ "$1" = libdpdk-dev ] || ! is_debian; then
        look_for "$1"
    else
        dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
    fi
}

# look_for PACKAGE: whether its contents are found. Sets `$what` to their description and `$fedora`
# to Fedora's package.
look_for() {
    fedora=$1
    case $1 in
    gcc) what="a C compiler, cc" && command -v cc ;;
    g++) what="a C++ compiler" fedora=gcc-c++ && command -v c++ ;;
    libc6-dev) what="libc's headers" fedora=glibc-devel && echo '#include <stdio.h>' | cc -E - ;;
    pkg-config) what="pkg-config" fedora=pkgconf-pkg-config && command -v pkg-config ;;
    libdpdk-dev) what="DPDK 22.11, 23.11, 24.11 or 25.11 (pkg-config libdpdk)" fedora=dpdk-devel &&
        pkg-config --exists libdpdk ;;
    libclang-dev) what="libclang, for bindgen" fedora=clang-devel && [ -n "${LIBCLANG_PATH:-}" ] ||
        compgen -G '/usr/lib*/libclang*.so*' || compgen -G '/usr/lib*/*/libclang*.so*' ||
        compgen -G '/usr/lib*/*/lib*/libclang*.so*' ;;
    protobuf-compiler) what="protoc" && command -v protoc ;;
    libprotobuf-dev) what="protoc's own .proto files" fedora=protobuf-devel &&
        compgen -G '/usr/*include/google/protobuf/descriptor.proto' ||
        compgen -G '/usr/local/include/google/protobuf/descriptor.proto' ;;
    python3-dev) what="Python's headers" fedora=python3-devel && /usr/bin/python3-config --includes ;;
    python3-venv) what="Python's module venv" fedora=python3-libs && /usr/bin/python3 -c 'import ensurepip, venv' ;;
    python3-*) what="/usr/bin/python3 with ${1#python3-}" && /usr/bin/python3 -c "import ${1#python3-}" ;;
    iproute2) what="ip" fedora=iproute && command -v ip ;;
    procps) what="sysctl" fedora=procps-ng && PATH=$PATH:/sbin:/usr/sbin command -v sysctl ;;
    ethtool) what="ethtool" && PATH=$PATH:/sbin:/usr/sbin command -v ethtool ;;
    openmpi-bin) what="Open MPI's mpirun" fedora=openmpi && command -v mpirun ;;
    tshark) what="tshark" fedora=wireshark-cli && command -v tshark ;;
    systemd) what="systemd-analyze" && command -v systemd-analyze ;;
    iputils-ping) what="ping" fedora=iputils && command -v ping ;;
    dpdk | dpdk-dev) what="dpdk-testpmd" fedora=dpdk && command -v dpdk-testpmd ;;
    util-linux) what="setpriv, unshare and chrt" && command -v setpriv && command -v unshare && command -v chrt ;;
    qemu-system-x86) what="qemu-system-x86_64" fedora=qemu-system-x86-core && command -v qemu-system-x86_64 ;;
    busybox-static) what="busybox" fedora=busybox && command -v busybox ;;
    perftest) what="ib_write_bw" && command -v ib_write_bw ;;
    ibverbs-providers) what="libibverbs's provider rxe" fedora=libibverbs &&
        compgen -G '/usr/lib*/libibverbs/librxe-*' || compgen -G '/usr/lib*/*/libibverbs/librxe-*' ;;
    qemu-user) what="qemu-x86_64 and qemu-aarch64" && command -v qemu-x86_64 && command -v qemu-aarch64 ;;
    gcc-aarch64-linux-gnu) what="aarch64-linux-gnu-gcc" && command -v aarch64-linux-gnu-gcc ;;
    g++-aarch64-linux-gnu) what="aarch64-linux-gnu-g++" fedora=gcc-c++-aarch64-linux-gnu &&
        command -v aarch64-linux-gnu-g++ ;;
    libc6-dev-arm64-cross) what="libc for AArch64" fedora= && compgen -G '/usr/aarch64-linux-gnu/lib/libc.so*' ;;
    *) what=$1 && command -v "$1" ;;
    esac >/dev/null 2>&1
}

# describe PACKAGE...: prints what is missing and the commands that install it.
describe() {
    local package fedoras=()
    echo "This is $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-not Debian}"). These are missing:"
    for package in "$@"; do
        look_for "$package"
        printf '    %s\n' "$what"
        fedoras+=($fedora)
    done
    echo "Install them, then start again. docs/OPERATIONS.md names the versions that were tested."
    echo "    Ubuntu:        sudo apt-get install --no-install-recommends $*"
    echo "    Fedora, RHEL:  sudo dnf install ${fedoras[*]}"
}

# need_rust: finds cargo, also where rustup puts it without telling the shell.
need_rust() {
    command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
    if ! command -v cargo >/dev/null; then
        echo "No Rust toolchain: see https://rustup.rs (cargo 1.95 or later)" >&2
        exit 1
    fi
    local libdir
    libdir=$(pkg-config --variable=libdir libdpdk)
    # DPDK built from source: its libraries are outside of the loader's path.
    case $libdir in
    /usr/lib | /usr/lib/* | /usr/lib64) ;;
    *) export LD_LIBRARY_PATH="$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
    esac
}

# What the build needs, what the demonstration needs to run, and what root's network needs.
BUILD_PACKAGES=(gcc libc6-dev pkg-config libdpdk-dev libclang-dev protobuf-compiler
    libprotobuf-dev)
RUN_PACKAGES=(python3-numpy)
NAMESPACE_PACKAGES=(iproute2 ethtool procps)
# What makes a program of the card's RTL.
CARD_PACKAGES=(verilator g++)
# What reads and benches the RTL beside it; cocotb needs Python as a library.
RTL_PACKAGES=(yosys iverilog python3-dev make)
# What `tally-perf allreduce` compares with, besides the Gloo of need_pytorch.
PEER_PACKAGES=(openmpi-bin python3-mpi4py)
# Cross compilers and emulator for AArch64.
CROSS_PACKAGES=(gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user debootstrap)
# What virtual machines that speak RoCEv2 are made of.
ROCE_PACKAGES=(qemu-system-x86 busybox-static cpio perftest ibverbs-providers)
# What a virtual environment needs, where python3 is Debian's.
PYTHON_PACKAGES=(python3 python3-venv)

# What the package's tests and examples need beside it.
PYTHON_REQUIREMENTS=("maturin>=1.7,<2" "numpy>=1.22" "torch>=2.3" scikit-learn pytest)

# What the benches of the RTL need. Verilator from 5.026 on queues vpiInertialDelay writes until
# doInertialPuts. cocotb 1.8 makes such writes and never calls it; cocotb 1.9 uses vpiNoDelay.
RTL_REQUIREMENTS=("cocotb==1.9.2")

# python_venv: where the virtual environment of the package tally is.
python_venv() {
    printf '%s\n' "$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}")/python-venv"
}

# need_pytorch: that environment with PYTHON_REQUIREMENTS, several GB. It stays from one time to the
# next, but never with CI set, nor after another Python or other requirements.
need_pytorch() {
    local venv have
    venv=$(python_venv) && have="$(python3 -VV) ${PYTHON_REQUIREMENTS[*]}" || return
    [ -z "${CI:-}" ] && [ "$(cat "$venv/installed" 2>/dev/null)" = "$have" ] && return
    echo "installing PyTorch and others, several GB, into $venv" >&2
    python3 -m venv --clear "$venv" &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "${PYTHON_REQUIREMENTS[@]}" &&
        printf '%s\n' "$have" >"$venv/installed"
}

# need_python_tally: the package tally as it is now in that environment; `$python_tally` is its
# python. If `$pytorch` is a need_pytorch in the background, it is waited for.
need_python_tally() {
    local root venv
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) && venv=$(python_venv) || return
    if [ -n "${pytorch:-}" ]; then wait "$pytorch"; else need_pytorch; fi || return
    # Its folder holds this one wheel.
    rm -rf "$venv/wheel"
    CARGO_TARGET_DIR=$(dirname "$venv") "$venv/bin/maturin" build --quiet --release --locked --out "$venv/wheel" \
        --manifest-path "$root/worker-agent/python/Cargo.toml" &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
            "$venv"/wheel/tally_ina-*.whl &&
        python_tally=$venv/bin/python
}

# need_cocotb: RTL_REQUIREMENTS in a virtual environment of their own; `$python_rtl` is its python.
# It is made with Debian's Python, since others often are no library, and stays from one time to the
# next.
need_cocotb() {
    local venv have
    venv=$(dirname "$(python_venv)")/rtl-venv && have="$(/usr/bin/python3 -VV) ${RTL_REQUIREMENTS[*]}" || return
    python_rtl=$venv/bin/python
    [ "$(cat "$venv/installed" 2>/dev/null)" = "$have" ] && return
    /usr/bin/python3 -m venv --clear "$venv" &&
        "$python_rtl" -m pip install --quiet --disable-pip-version-check "${RTL_REQUIREMENTS[@]}" &&
        printf '%s\n' "$have" >"$venv/installed"
}
