"""A fake NVIDIA driver: libnvidia-ml.so.1 compiled from tests/data/nvml, told by the test what its GPUs say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.places import DATA

SOURCE = DATA / "nvml" / "fake_nvml.c"
XID = 8  # nvmlEventTypeXidCriticalError

# A healthy data-centre GPU under load; keys are those of fake_nvml.c, in NVML's own units.
HEALTHY: dict[str, int] = {
    "util_gpu": 97, "util_mem": 45, "encoder": 0, "decoder": 0, "clock_1": 1755, "clock_2": 2619, "clock_max_1": 1980,
    "event_reasons": 0, "temperature": 62, "threshold_0": 95, "threshold_1": 92, "power_mw": 640_000,
    "power_limit_mw": 700_000, "energy_mj": 5_000_000, "pstate": 0, "pcie_replay": 0, "mem_total": 150_000_000_000,
    "mem_reserved": 600_000_000, "mem_free": 49_400_000_000, "mem_used": 100_000_000_000, "bar1_used": 1_000_000,
    "pcie_kb_0": 2_000_000, "pcie_kb_1": 1_000_000, "pcie_gen": 5, "pcie_gen_max": 5, "pcie_width": 16,
    "pcie_width_max": 16, "ecc_0_0": 0, "ecc_1_0": 0, "ecc_0_1": 3, "ecc_1_1": 0, "remapped_corr": 0,
    "remapped_unc": 0, "remapped_pending": 0, "remapped_failure": 0, "nvlinks": 18, "field_82": 71, "field_38": 0,
    "field_52": 0, "field_59": 0, "field_138": 1_000, "field_139": 2_000, "field_173": 0, "field_230": 0,
    "violation_0_ns": 0, "violation_1_ns": 0, "processes": 1, "event_types": XID,
}  # fmt: skip


class CompilerMissing(Exception):
    """There is no C compiler here."""


class FakeNvml:
    """The library and its script in one folder.

    Parameters
    ----------
    folder : Path
        Gets ``lib/libnvidia-ml.so.1`` and ``nvml.txt``.
    gpus : int
        How many healthy GPUs there are at first.
    old_driver : bool
        Leave out the functions that came with driver 510 and later.

    Raises
    ------
    CompilerMissing
        If ``cc`` is not installed.
    """

    def __init__(self, folder: Path, gpus: int = 8, *, old_driver: bool = False) -> None:
        self.library = folder / "lib" / "libnvidia-ml.so.1"
        self._state = folder / "nvml.txt"
        self._gpus = [dict(HEALTHY) for _ in range(gpus)]
        self._count = gpus
        self._init_error = 0
        self._events: list[str] = []
        self._compile(old_driver)
        self.write()

    def _compile(self, old_driver: bool) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise CompilerMissing("there is no C compiler (cc) to build the fake NVML with")
        self.library.parent.mkdir(parents=True, exist_ok=True)
        options = ["-DOLD_DRIVER"] if old_driver else []
        command = [compiler, "-O1", "-shared", "-fPIC", *options, "-o", str(self.library), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(f"the fake NVML does not compile:\n{done.stderr}")

    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to load this library instead of the driver's."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self._state)}

    @staticmethod
    def uuid(gpu: int) -> str:
        """The UUID of a GPU."""
        return f"GPU-{0xFA4E0000 + gpu:08x}-0000-4000-8000-{gpu:012x}"

    def set(self, gpu: int, **values: int | None) -> None:
        """Change values of one GPU, at once; None means that it does not support that."""
        for key, value in values.items():
            if value is None:
                self._gpus[gpu].pop(key, None)
            else:
                self._gpus[gpu][key] = value
        self.write()

    def fail(self, gpu: int, key: str, code: int) -> None:
        """Let every question for `key` fail with an nvmlReturn_t code."""
        self._gpus[gpu][f"{key}!"] = code
        self.write()

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus."""
        self.set(gpu, lost=1)

    def xid(self, gpu: int, code: int) -> None:
        """Deliver an Xid event."""
        self._events.append(f"event {len(self._events) + 1} {gpu} {XID} {code}")
        self.write()

    def start_error(self, code: int) -> None:
        """Let nvmlInit fail with an nvmlReturn_t code."""
        self._init_error = code
        self.write()

    def write(self) -> None:
        """Put everything into the script in one step."""
        lines = [f"count {self._count}", f"init_error {self._init_error}", *self._events]
        for index, gpu in enumerate(self._gpus):
            lines += [f"{index} {key} {value}" for key, value in gpu.items()]
        part = self._state.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self._state)
