"""Check all patches, and the packages that are imported lazily, against the installed libraries and list them.

Exit code 1 if any does not fit.  Training refuses to start with a patch that does not; a package that does not is imported whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import command
from common.progress import show


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per patch and every problem."""
    parser = command.parser(__doc__, prog="nemo_patches.catalogue", example="python -m nemo_patches.catalogue")
    parser.parse_args(argv)
    show("loading NeMo")

    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        from nemo_patches import cpu_device, fake_devices, fake_storage, gradient_norm, lazy_compile, no_allocator, torch_adam
        from nemo_patches.core import check
        from nemo_patches.lazy_packages import LAZY

        everywhere = (*lazy_compile.PATCHES, *cpu_device.PATCHES, *torch_adam.PATCHES, *gradient_norm.PATCHES)
        patches = (*everywhere, *fake_devices.PATCHES, *fake_storage.PATCHES)
        problems = [*check(patches), *filter(None, (package.problem() for package in LAZY)), *filter(None, [no_allocator.problem()])]
    for patch in patches:
        print(f"{patch.target}  ({patch.package} {', '.join(patch.digests)})")
    for package in LAZY:
        print(f"{package.name}  (lazily, {package.distribution} {', '.join(package.digests)})")
    for problem in problems:
        print(f"does not fit: {problem}")
    return command.WRONG if problems else command.DONE


if __name__ == "__main__":
    command.run(main)
