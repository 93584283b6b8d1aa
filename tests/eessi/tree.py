# SPDX-License-Identifier: GPL-2.0-or-later
"""A miniature EESSI: several CPU targets, an accelerator folder, modules with dependencies; and users of it.

What a user does is done for real: Lmod loads and purges, in a bash with Lmod's own `module` function. The tree stands
for /cvmfs/software.eessi.io; which CPU a node has is the content of one file, as /proc/cpuinfo is one path with another
content on each node.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
LMOD_INITS = (Path("/usr/share/lmod/lmod/init/bash"), Path("/usr/share/lmod/8.6.19/init/bash"))
VERSION = "2023.06"
EESSI = f"EESSI/{VERSION}"

GENERIC = "x86_64/generic"
HASWELL = "x86_64/intel/haswell"
ZEN2 = "x86_64/amd/zen2"
ZEN4 = "x86_64/amd/zen4"
CC80 = "accel/nvidia/cc80"
# CPU target and the flags that make a node of it; the later the better (archdetect.sh).
CPU_TARGETS = {HASWELL: "avx2 fma intel", ZEN2: "avx2 fma amd", ZEN4: "avx2 fma amd avx512f", GENERIC: "sse2"}

# name -> its dependencies. What is loaded by `module load App/1.0` is in this order.
MODULES = {
    "GCCcore/12.3.0": (),
    "zlib/1.2.13-GCCcore-12.3.0": ("GCCcore/12.3.0",),
    "libstdc++/12.3.0": ("GCCcore/12.3.0",),
    "App/1.0": ("zlib/1.2.13-GCCcore-12.3.0", "libstdc++/12.3.0"),
}


def lmod_init() -> "Path | None":
    """Lmod's init/bash on this machine, or None."""
    return next((path for path in LMOD_INITS if path.exists()), None)


class Tree:
    """A made tree at root, and what users and nodes of it do."""

    def __init__(self, root: Path, cpus: Iterable[str] = (GENERIC, HASWELL, ZEN2, ZEN4)) -> None:
        self.root = root
        self.prefix = root / "versions" / VERSION
        self.init = self.prefix / "init"
        self.cpuinfo = root / "cpuinfo"
        self.cpus = tuple(cpus)
        self.gpu_folder = root / "gpu"
        self.init.mkdir(parents=True)
        self.gpu_folder.mkdir()
        lua = (HERE / "EESSI.lua").read_text().replace("@ROOT@", str(root))
        (root / "init" / "modules" / "EESSI").mkdir(parents=True)
        self._write(root / "init" / "modules" / "EESSI" / f"{VERSION}.lua", lua)
        shutil.copy(HERE / "archdetect.sh", self.init / "eessi_archdetect.sh")
        (self.init / "eessi_archdetect.sh").chmod(0o755)
        targets = [f"{cpu} {flags}\n" for cpu, flags in CPU_TARGETS.items() if cpu != GENERIC]
        self._write(self.init / "cpu_targets", "".join(targets))
        for name, variable, call in (
            ("cpu_wrapper.sh", "EESSI_ARCHDETECT_OPTIONS", "-a cpupath"),
            ("accel_wrapper.sh", "EESSI_ACCEL_SUBDIR", "accelpath"),
        ):
            self._write(self.init / name, f"export {variable}=$({self.init}/eessi_archdetect.sh {call})\n")
        for cpu in self.cpus:
            (self.software(cpu) / "software").mkdir(parents=True)
            (self.software(cpu) / ".lmod").mkdir()
            for name, needs in MODULES.items():
                self.add(cpu, name, needs)
        self.node(GENERIC)

    def software(self, cpu: str) -> Path:
        """Where a target's software is; an accelerator's, as `<cpu>/accel/nvidia/cc80`, is below its CPU's."""
        return self.prefix / "software" / "linux" / cpu

    def _write(self, path: Path, text: str) -> None:
        path.write_bytes(os.fsencode(text))  # the root's name need not be UTF-8

    def add(self, cpu: str, name: str, needs: Iterable[str] = (), lua: str = "", paths: bool = True) -> None:
        """Adds a module for one target, with EasyBuild's paths, and a program that tells its target."""
        top = self.software(cpu)
        short, _, version = name.partition("/")
        own = top / "software" / name
        (own / "bin").mkdir(parents=True, exist_ok=True)
        program = own / "bin" / short.lower()
        self._write(program, f'#!/bin/sh\necho "{short} for {cpu}"\n')
        program.chmod(0o755)
        key = "".join(c if c.isalnum() else "_" for c in short.upper())
        text = "".join(f'depends_on("{need}")\n' for need in needs)
        text += f'setenv("EBROOT{key}", "{own}")\nsetenv("EBVERSION{key}", "{version}")\n'
        if paths:
            for variable, folder in (
                ("PATH", "bin"),
                ("CPATH", "include"),
                ("LIBRARY_PATH", "lib"),
                ("CMAKE_PREFIX_PATH", ""),
                ("PKG_CONFIG_PATH", "lib/pkgconfig"),
                ("XDG_DATA_DIRS", "share"),
                ("MANPATH", "share/man"),
            ):
                text += f'prepend_path("{variable}", "{own / folder}")\n'
        file = top / "modules" / "all" / f"{name}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._write(file, text + lua)

    def node(self, cpu: str, accel: "str | None" = None) -> None:
        """Makes this machine a node of another kind: its CPU, and an accelerator as `8.0` for compute capability."""
        self._write(self.cpuinfo, f"processor : 0\nflags : {CPU_TARGETS[cpu]}\n")
        smi = self.gpu_folder / "nvidia-smi"
        smi.unlink(missing_ok=True)
        if accel:
            # The real one needs its query; another call gets its usage error.
            smi.write_text(
                "#!/bin/sh\n"
                '[ "$1" = --query-gpu=gpu_name,count,driver_version,compute_cap ] || exit 2\n'
                '[ "$2" = --format=csv,noheader ] || exit 2\n'
                f'echo "NVIDIA A100-SXM4-40GB, 1, 535.104.05, {accel}"\n'
            )
            smi.chmod(0o755)

    def decisions(self) -> int:
        """How often the detector was asked for the CPU, but for Lmod's own asking in a reload by the guard."""
        log = self.root / "detector.log"
        return sum(line.endswith("cpupath\n") for line in log.open()) if log.exists() else 0

    def login(
        self, names: Iterable[str] = (EESSI, "App/1.0"), extra: Mapping[bytes, bytes] = {}, before: str = ""
    ) -> "dict[bytes, bytes]":
        """The environment of a user who has loaded names here, as a batch job inherits it.

        before: sh code between Lmod's init and the load.
        """
        environ = {
            b"HOME": os.fsencode(self.root),
            b"USER": b"alice",
            b"PATH": b"/usr/local/bin:/usr/bin:/bin:" + os.fsencode(self.gpu_folder),
            b"EESSI_PROC_CPUINFO": os.fsencode(self.cpuinfo),
            b"EESSI_MACHINE_TYPE": b"x86_64",
            **extra,
        }
        script = f'. "$LMOD_INIT" >/dev/null; unset LMOD_INIT\nmodule use {self.root}/init/modules\n{before}\n'
        script += 'module load "$@" 2>&1\nexec env -0 >&3'
        init = lmod_init()
        assert init, "Lmod is not installed"
        environ[b"LMOD_INIT"] = os.fsencode(init)
        after = dump(["/bin/bash", "--noprofile", "--norc", "-c", script, "bash", *names], environ)
        loaded = after.get(b"LOADEDMODULES", b"").decode().split(":")
        assert set(names) <= set(loaded), f"asked for {names}, loaded {loaded}"
        return after

    def fresh(self, environ: Mapping[bytes, bytes], names: "Iterable[str] | None" = None) -> "dict[bytes, bytes]":
        """The reference: what a user gets who types purge and load on this node, in a bash with that environment."""
        listed = names or environ[b"LOADEDMODULES"].decode().split(":")
        script = 'module --force purge 2>&1\nmodule load "$@" 2>&1\nexec /usr/bin/env -0 >&3'
        return dump(["/bin/bash", "--noprofile", "--norc", "-c", script, "bash", *listed], environ)


def dump(argv: "list[str]", environ: Mapping[bytes, bytes]) -> "dict[bytes, bytes]":
    """The environment that a bash writes NUL-separated to its fd 3. What it prints is shown when there is none."""
    read_fd, write_fd = os.pipe()
    # fd 3 by bash itself: the number that pipe() gave is any.
    argv = [*argv]
    argv[4] = f"exec 3>&{write_fd} {write_fd}>&-\n" + argv[4]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, pass_fds=[write_fd]) as process:
        os.close(write_fd)
        with open(read_fd, "rb") as stream:
            data = stream.read()
        assert process.stdout
        said = process.stdout.read()
    if not data:
        raise RuntimeError(f"no environment: {said.decode(errors='replace')}")
    return dict(entry.partition(b"=")[::2] for entry in data.split(b"\0")[:-1])
