#!/usr/bin/env bash
# Put our pinned packages onto the image that this runs in, as a layer in /opt/scion; called by the definitions here.
#
#   layer.sh FOLDER [--without-nemo] [--keep NAME ...]     FOLDER: requirements.txt and choose_pins.py
#
# PYTHON names the image's Python where it is not the first on the path, LAYER another place, WHEELS a folder of wheels.
set -euo pipefail
folder="$1"
shift
layer="${LAYER:-/opt/scion}"
python="${PYTHON:-python3}"

# NVIDIA's images make every pip install keep versions of their own, which contradict our pins; what must stay is decided in choose_pins.py.
unset PIP_CONSTRAINT

# Where there is no network, as on most compute nodes: the wheels that `slurm.prefetch --wheels` left, bound to /wheels.
wheels="${WHEELS:-/wheels}"
if [ -d "$wheels" ]; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$wheels"
fi

"$python" -m venv --system-site-packages "$layer"
"$python" "$folder/choose_pins.py" --layer "$layer" --requirements "$folder/requirements.txt" "$@"
# Everything is pinned, so no dependency has to be found, and none can bring another torch along.
"$layer/bin/python" -m pip install --no-deps --no-cache-dir --disable-pip-version-check --progress-bar off -r "$layer/layer.txt"
"$layer/bin/python" "$folder/choose_pins.py" --layer "$layer"
