"""Check all patches against the installed libraries and list them.

Exit code 1 if any does not fit; then training refuses to start, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_prep import command


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per patch and every problem."""
    parser = command.parser(__doc__, prog="nemo_patches.catalogue", example="python -m nemo_patches.catalogue")
    parser.parse_args(argv)

    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        from nemo_patches import cpu_device, fake_devices, fake_storage, gradient_norm, torch_adam
        from nemo_patches.core import check

        patches = (*cpu_device.PATCHES, *torch_adam.PATCHES, *gradient_norm.PATCHES, *fake_devices.PATCHES, *fake_storage.PATCHES)
        problems = check(patches)
    for patch in patches:
        print(f"{patch.target}  ({patch.package} {', '.join(patch.digests)})")
    for problem in problems:
        print(f"does not fit: {problem}")
    return command.WRONG if problems else command.DONE


if __name__ == "__main__":
    command.run(main)
