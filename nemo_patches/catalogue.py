"""List all patches with their purpose, and check them against the installed libraries.

Exit code 1 if one does not fit.  Training refuses to start without a patch that its results depend on, and continues without any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import command
from common.progress import show


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per patch and every problem."""
    parser = command.parser(__doc__, example="python -m nemo_patches.catalogue")
    parser.parse_args(argv)
    show("loading NeMo")

    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        from nemo_patches import cpu_device, fake_devices, fake_storage, gradient_norm, no_allocator, torch_adam
        from nemo_patches.core import misfit

        patches = (
            *(*cpu_device.PATCHES, *torch_adam.PATCHES, *gradient_norm.PATCHES),
            *(*fake_devices.PATCHES, *fake_storage.PATCHES),
        )
        problems = [*filter(None, map(misfit, patches)), *filter(None, [no_allocator.problem()])]
    for patch in patches:
        known = f"{patch.package} {', '.join(patch.digests) or 'of any version'}"
        kind = "comfort" if patch.comfort else "needed" if patch.digests else "replaced whole"
        print(f"{patch.target}  ({known}; {kind}): {patch.reason} Until {patch.remove_when}")
    for problem in problems:
        print(f"does not fit: {problem}")
    return command.WRONG if problems else command.DONE


if __name__ == "__main__":
    command.run(main)
