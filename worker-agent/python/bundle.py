"""Adds programs and their shared libraries to a wheel: ``bundle.py WHEEL PROGRAMS OUTDIR``.

``tally/_bundle`` gets `bin`, `lib`, `licenses` and `bundle.json`, which :mod:`tally.local` reads.
Libraries are those that the loader finds, except for glibc's and libgcc_s, which each Linux has.
The wheel's platform tag follows from the newest symbol of glibc that any of its files needs. Prints
the path of the new wheel.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = ("tally-switch", "tally-agent")
# The EAL loads drivers from a folder, without which it knows none.
DRIVERS = ("librte_net_memif.so", "librte_mempool_ring.so")
# Of every Linux that the platform tag admits.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|resolv|util|gcc_s)\.so\.|ld-linux|linux-(vdso|gate))")
# The compiler's macro of a feature, and the kernel's name for it.
CPU_FLAGS = {
    "__SSE3__": "pni",
    "__SSSE3__": "ssse3",
    "__SSE4_1__": "sse4_1",
    "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt",
    "__AES__": "aes",
    "__PCLMUL__": "pclmulqdq",
    "__AVX__": "avx",
    "__AVX2__": "avx2",
    "__FMA__": "fma",
    "__BMI__": "bmi1",
    "__BMI2__": "bmi2",
    "__AVX512F__": "avx512f",
    "__AVX512BW__": "avx512bw",
    "__AVX512VL__": "avx512vl",
    "__ARM_FEATURE_CRC32": "crc32",
    "__ARM_FEATURE_ATOMICS": "atomics",
    "__ARM_FEATURE_CRYPTO": "aes",
}


def run(*command: object) -> str:
    done = subprocess.run([str(it) for it in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bundle.py: {' '.join(map(str, command))} failed:\n{done.stderr}{done.stdout}")
    return done.stdout


def driver_folder(eal: pathlib.Path) -> bytes:
    """The folder of drivers that this EAL loads, with symbolic links as they are."""
    found: set[bytes] = set(re.findall(rb"\0(/[^\0]*/dpdk/pmds-[\d.]+)\0", eal.read_bytes()))
    if len(found) != 1:
        sys.exit(f"bundle.py: {eal}: {len(found)} folders of drivers found, expected 1")
    return found.pop()


def libraries(files: "list[pathlib.Path]") -> "dict[str, pathlib.Path]":
    """What the loader loads for these, by soname."""
    found: dict[str, pathlib.Path] = {}
    for file in files:
        for line in run("ldd", file).splitlines():
            name, _, rest = line.strip().partition(" => ")
            if SYSTEM.search(name):
                continue
            path = rest.rpartition(" (")[0]
            if not path.startswith("/"):
                sys.exit(f"bundle.py: {file} needs {line.strip()}")
            found[name] = pathlib.Path(path)
    return found


def soname(file: pathlib.Path) -> str:
    found = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-dW", file))
    return found[1] if found else file.name


def newest_glibc(files: "list[pathlib.Path]") -> "tuple[int, int]":
    """The newest version of glibc whose symbols one of the files needs."""
    newest = (2, 17)
    for file in files:
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", run("readelf", "-VW", file)):
            newest = max(newest, (int(major), int(minor)))
    return newest


def cpu_flags() -> "list[str]":
    """Features of the CPU that code compiled for DPDK needs."""
    flags = run("pkg-config", "--cflags-only-other", "libdpdk").split()
    flags = [it for it in flags if it.startswith("-m")]
    macros = subprocess.run(["cc", *flags, "-dM", "-E", "-"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    defined = set(re.findall(r"#define (\w+)", macros.stdout))
    return sorted({flag for macro, flag in CPU_FLAGS.items() if macro in defined})


def package_of(library: pathlib.Path) -> "tuple[str, pathlib.Path]":
    """The distribution's package of a library, and the folder or file of its licence."""
    # Its link may be of a package for developers. Packages from before the merged /usr name files
    # without it.
    real = library.resolve()
    for name in [re.sub("^/usr" * usr, "", str(it)) for it in (real, library) for usr in (False, True)]:
        if shutil.which("dpkg-query"):
            done = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
            if done.returncode == 0:
                package = done.stdout.split(":")[0]
                return package, pathlib.Path("/usr/share/doc", package, "copyright")
        elif shutil.which("rpm"):
            done = subprocess.run(["rpm", "-qf", "--qf", "%{NAME}\n", name], capture_output=True, text=True)
            if done.returncode == 0:
                package = done.stdout.split()[0]
                return package, pathlib.Path("/usr/share/licenses", package)
    sys.exit(
        f"bundle.py: {library} is of no package, so its licence is not known: build the wheel with the "
        "distribution's DPDK"
    )


def copy_licences(found: "dict[str, pathlib.Path]", into: pathlib.Path) -> None:
    """Copies the licences of the libraries' packages, and of the Rust crates in the programs."""
    into.mkdir()
    shutil.copy(ROOT / "LICENSE", into / "tally")
    common: set[str] = set()
    for package, licence in sorted({package_of(it) for it in found.values()}):
        files = sorted(licence.iterdir()) if licence.is_dir() else [licence]
        text = b"".join(it.read_bytes() for it in files)
        if not text:
            sys.exit(f"bundle.py: {licence} is empty")
        (into / package).write_bytes(text)
        common |= set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text.decode(errors="replace")))
    for name in sorted(common):
        source = pathlib.Path("/usr/share/common-licenses", name)
        if source.exists():
            shutil.copy(source, into / f"common-{name}")
    (into / "rust-crates").write_text(crate_licences())


def crate_licences() -> str:
    """The licence texts of the crates in the programs and `tally._native`, each with its crates."""
    packages: dict[str, pathlib.Path] = {}
    expressions: dict[str, str] = {}
    for manifest, roots in ((ROOT / "Cargo.toml", PROGRAMS), (HERE / "Cargo.toml", ("tally-python",))):
        host = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.MULTILINE)
        assert host
        metadata = json.loads(
            run(
                *("cargo", "metadata", "--format-version", 1, "--locked", "--filter-platform", host[1]),
                *("--manifest-path", manifest),
            )
        )
        by_id = {it["id"]: it for it in metadata["packages"]}
        nodes = {it["id"]: it for it in metadata["resolve"]["nodes"]}
        queue = [id_ for id_, it in by_id.items() if it["name"] in roots]
        seen = set(queue)
        while queue:
            for dependency in nodes[queue.pop()]["deps"]:
                if dependency["pkg"] not in seen and any(it["kind"] is None for it in dependency["dep_kinds"]):
                    seen.add(dependency["pkg"])
                    queue.append(dependency["pkg"])
        for it in (by_id[id_] for id_ in seen):
            # Those of this repository have its licence.
            if it["source"] is not None:
                name = f"{it['name']} {it['version']}"
                packages[name] = pathlib.Path(it["manifest_path"]).parent
                expressions[name] = it["license"] or "see its text"
    crates_of: dict[str, list[str]] = {}
    for name, folder in sorted(packages.items()):
        for file in sorted(folder.iterdir()):
            if not file.is_file() or not re.match(r"(?i)(licen[cs]e|copying|notice|unlicense)", file.name):
                continue
            crates_of.setdefault(file.read_text(errors="replace").strip(), []).append(name)
    parts = ["Rust crates in tally-switch, tally-agent and tally._native, and Rust's standard library", ""]
    parts += ["std: MIT OR Apache-2.0"]
    parts += [f"{name}: {expression}" for name, expression in sorted(expressions.items())]
    for text, crates in crates_of.items():
        parts.append(f"\n{'=' * 80}\n{', '.join(sorted(set(crates)))}\n{'=' * 80}\n{text}")
    return "\n".join(parts) + "\n"


def make_bundle(programs: pathlib.Path, bundle: pathlib.Path) -> None:
    """Fills the folder."""
    for name in ("bin", "lib"):
        (bundle / name).mkdir(parents=True)
    for name in PROGRAMS:
        run("strip", "-s", "-o", bundle / "bin" / name, programs / name)
        (bundle / "bin" / name).chmod(0o755)
    found = libraries([programs / name for name in PROGRAMS])
    eal = next(path for name, path in found.items() if name.startswith("librte_eal."))
    folder = driver_folder(eal)
    drivers = [pathlib.Path(os.fsdecode(folder)) / name for name in DRIVERS]
    found = libraries([*(programs / name for name in PROGRAMS), *drivers]) | {soname(it): it for it in drivers}
    for name, path in found.items():
        content = path.read_bytes()
        if path == eal:
            # Without a folder it loads none of this machine's drivers, which are of another build.
            content = content.replace(b"\0" + folder + b"\0", b"\0" * (len(folder) + 2))
        (bundle / "lib" / name).write_bytes(content)
    description = {
        "machine": platform.machine(),
        "cpu_flags": cpu_flags(),
        "dpdk": run("pkg-config", "--modversion", "libdpdk").strip(),
        "drivers": [soname(it) for it in drivers],
    }
    (bundle / "bundle.json").write_text(json.dumps(description, indent=1) + "\n")
    copy_licences(found, bundle / "licenses")


def rewrite(wheel: pathlib.Path, bundle: pathlib.Path, outdir: pathlib.Path) -> pathlib.Path:
    """The wheel with the bundle, its new tag and a new RECORD."""
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(wheel) as old:
        unpacked = pathlib.Path(temporary)
        old.extractall(unpacked)
        native = list(unpacked.glob("tally/_native*.so"))
        binaries = [*native, *bundle.glob("bin/*"), *bundle.glob("lib/*")]
        major, minor = newest_glibc(binaries)
        name, version, python, abi, _ = wheel.stem.split("-")
        tag = f"{python}-{abi}-manylinux_{major}_{minor}_{platform.machine()}"
        info = f"{name}-{version}.dist-info"
        text = (unpacked / info / "WHEEL").read_text()
        text = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", text)
        entries: dict[str, tuple[bytes, int]] = {}
        for item in old.infolist():
            if not item.is_dir() and item.filename != f"{info}/RECORD":
                entries[item.filename] = (old.read(item), 0o644)
        entries[f"{info}/WHEEL"] = (text.encode(), 0o644)
        for file in sorted(bundle.rglob("*")):
            if file.is_file():
                mode = 0o755 if file.parent.name == "bin" else 0o644
                entries[f"tally/_bundle/{file.relative_to(bundle)}"] = (file.read_bytes(), mode)
        record = ""
        for path, (content, _) in entries.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(content)}\n"
        entries[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    result = outdir / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as new:
        for path, (content, mode) in entries.items():
            # The same time in each build.
            item = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            item.external_attr = (0o100000 | mode) << 16
            item.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(item, content)
    return result


def main() -> None:
    wheel, programs, outdir = map(pathlib.Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        bundle = pathlib.Path(temporary, "_bundle")
        make_bundle(programs, bundle)
        print(rewrite(wheel, bundle, outdir))


if __name__ == "__main__":
    main()
