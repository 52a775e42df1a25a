#!/usr/bin/env bash
# The CPU device's tests compiled for 64-bit ARM, under an emulator: every NEON kernel against the reference.
#
#     scripts/neon.sh [words of a test's name]
#
# Needs the Rust target, a cross compiler to link with and qemu's user emulator; what is missing is named.
# CPU=cortex-a53 leaves out what the first ARMv8 lacks: dot products and bf16.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

missing=()
rustup target list --installed 2>/dev/null | grep -qx "$target" || missing+=("rustup target add $target")
linker=$(command -v aarch64-linux-gnu-gcc || true)
[ -n "$linker" ] || missing+=("apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
[ -n "$qemu" ] || missing+=("apt-get install qemu-user-static")
if [ "${#missing[@]}" -gt 0 ]; then
    echo "skipped: the NEON kernels can't be run here; first:"
    printf '    %s\n' "${missing[@]}"
    exit 0
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -cpu ${CPU:-max} -L /usr/aarch64-linux-gnu"
cargo test --release --target "$target" -p turbospark-device-cpu --no-fail-fast -- "$@"
